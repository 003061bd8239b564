import pytest
import torch
from fake_gpu import FakeDriver, FakeGpu
from torch.nn.functional import conv2d

from ekya.gpu.green.levels import GatedLevels, LevelPool, spans_ahead
from ekya.gpu.green.sm_driver import SmLayout
from ekya.system.numeric_check import GateSizes, NumericGate
from ekya.system.numeric_result import Checked

SIZES = GateSizes(side=48, images=2, channels=4, pixels=8)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def gate(**faults):
    return NumericGate("cpu", DTYPES, sizes=SIZES, **faults)


def failures(checked):
    return [(one.operation, one.dtype) for one in checked if not one.passed]


def test_gate_correct_device_passes_every_type():
    checked = gate().run_checks()
    assert len(checked) == 2 * len(DTYPES)
    assert failures(checked) == []
    # The errors are those of rounding to the type, and no larger.
    errors = {one.dtype: one.error for one in checked if one.operation == "product"}
    assert 0 < errors["float32"] < 1e-5 < errors["float16"] < errors["bfloat16"] < 5e-3


def test_gate_wrong_half_value_fails_only_that_type():
    def faulty(left, right):
        answer = torch.matmul(left, right)
        if answer.dtype is torch.float16:
            answer[7, 11] += 0.05 * answer.abs().max()
        return answer

    checked = gate(product=faulty).run_checks()
    assert failures(checked) == [("product", "float16")]
    assert "product in float16 is off by 0.05" in " ".join(map(str, checked))


def test_gate_nan_fails():
    def faulty(images, kernels):
        answer = conv2d(images, kernels)
        answer[0, 0, 0, 0] = float("nan") if answer.dtype is torch.bfloat16 else answer[0, 0, 0, 0]
        return answer

    checked = gate(convolve=faulty).run_checks()
    assert failures(checked) == [("convolution", "bfloat16")]
    assert "a convolution in bfloat16 has values that are not finite" in map(str, checked)


def test_gate_raising_operation_fails_and_is_quoted():
    def faulty(left, right):
        raise RuntimeError("too many resources requested\nfor launch")

    checked = gate(product=faulty).run_checks()
    assert failures(checked) == [("product", str(dtype).removeprefix("torch.")) for dtype in DTYPES]
    assert "a product in float32 raised too many resources requested" in map(str, checked)


@pytest.mark.parametrize(("error", "passed"), [(0.0099, True), (0.01, False), (float("nan"), False)])
def test_gate_limit_is_one_hundredth(error, passed):
    assert Checked("product", "float32", error, True).passed == passed


class CountedGate:
    """Gate that fails for some numbers of SMs and records its calls."""

    def __init__(self, driver, gpu, bad=()):
        self.driver, self.gpu, self.bad = driver, gpu, bad
        self.asked = []

    def __call__(self):
        sms = sum(one.sms for one in self.driver.contexts[self.driver.streams[self.gpu.current()]])
        self.asked.append(sms)
        return (Checked("product", "float16", 0.0, sms not in self.bad),)


def gated(bad=(), **driver):
    driver, gpu = FakeDriver(**driver), FakeGpu()
    gate = CountedGate(driver, gpu, bad)
    return GatedLevels(LevelPool(driver), gpu, gate), driver, gate


def test_gated_levels_check_each_sm_count_once():
    levels, _, gate = gated()
    levels.usable(0, 4)
    levels.usable(4, 4)
    levels.usable(0, 4, lane=1)
    levels.usable(0, 2)
    assert gate.asked == [32, 16]


def test_gated_levels_failing_level_is_skipped_and_logged():
    levels, _, _ = gated(bad={64, 56})
    usable = levels.usable(2, 8)
    assert usable.level.sms == 48
    assert usable.refused == (
        "on 64 SMs a product in float16 has values that are not finite",
        "on 56 SMs a product in float16 has values that are not finite",
    )
    assert set(levels.failed) == {64, 56, 48}
    assert levels.failed[48] == ()


def test_gated_levels_level_refused_by_driver_is_skipped():
    levels, driver, _ = gated()
    kept = driver.make_context

    def refuse_large(groups):
        if len(groups) > 3:
            driver.fails.add("make_context")
        try:
            return kept(groups)
        finally:
            driver.fails.discard("make_context")

    driver.make_context = refuse_large
    usable = levels.usable(0, 5)
    assert usable.level.groups == 3
    assert usable.refused == ("make_context: CUDA_ERROR_OUT_OF_MEMORY",) * 2


def test_gated_levels_none_passing_gives_none():
    levels, _, _ = gated(bad={8, 16})
    assert levels.usable(0, 2).level is None


@pytest.mark.parametrize("layout", [SmLayout(8, 16, 4), SmLayout(2, 54), SmLayout(4, 1), SmLayout(2, 3)])
def test_gated_levels_prepared_span_the_whole_gpu(layout):
    spans = spans_ahead(layout)
    assert (0, layout.groups) in spans
    assert len(set(spans)) == len(spans) <= 7
    assert all(0 <= first < first + groups <= layout.groups for first, groups in spans)


def test_gated_levels_prepared_are_not_made_again():
    levels, driver, gate = gated()
    levels.make_ahead(spans_ahead(levels.layout))
    made = len(driver.contexts)
    levels.usable(0, 4)
    levels.usable(12, 4)
    assert len(driver.contexts) == made
    assert sorted(gate.asked) == sorted(set(gate.asked))
