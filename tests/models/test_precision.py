import torch

from ekya.models.edge.precision import allowed_by, training_precision
from ekya.system.arithmetic_gate import GateSizes, NumericGate


def gate(**faults) -> NumericGate:
    return NumericGate("cpu", (torch.bfloat16,), sizes=GateSizes(48, 2, 4, 8), **faults)


def test_a_processor_trains_in_32_bits() -> None:
    assert training_precision("cpu") is torch.float32


def test_what_counts_right_in_half_the_bits_trains_in_them() -> None:
    assert allowed_by(gate()) is torch.bfloat16
    assert allowed_by(NumericGate("cpu", (torch.bfloat16,))) is torch.bfloat16


def test_a_product_that_gives_nan_or_is_off_is_found_out() -> None:
    def nan(one, other):
        return torch.matmul(one, other) * float("nan")

    def off(one, other):
        return torch.matmul(one, other) * 1.02

    for wrong in (nan, off):
        assert allowed_by(gate(product=wrong)) is torch.float32
