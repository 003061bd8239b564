import pytest
import torch
from torch.nn.functional import conv2d

from ekya.system.numeric_check import computes_right

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES)
def test_correct_device_computes_right(dtype):
    assert computes_right("cpu", dtype)


@pytest.mark.parametrize(("off", "right"), [(0.009, True), (0.02, False), (float("nan"), False)])
def test_operation_may_be_off_by_one_hundredth(off, right):
    def wrong(operation):
        def answer(one, other):
            found = operation(one, other)
            found.view(-1)[7] += off * found.abs().max()
            return found

        return answer

    assert computes_right("cpu", torch.float32, product=wrong(torch.matmul)) is right
    assert computes_right("cpu", torch.float32, convolve=wrong(conv2d)) is right


def test_raising_operation_does_not_compute_right():
    def refuse(one, other):
        raise RuntimeError("too many resources requested for launch")

    assert not computes_right("cpu", torch.float16, product=refuse)
