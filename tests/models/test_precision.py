import torch

from ekya.models.training.trainer import allowed_by, training_precision
from ekya.system.numeric_check import GateSizes, NumericGate


def gate(**faults) -> NumericGate:
    return NumericGate("cpu", (torch.bfloat16,), sizes=GateSizes(48, 2, 4, 8), **faults)


def test_training_precision_on_a_cpu_is_32_bits() -> None:
    assert training_precision("cpu") is torch.float32


def test_training_precision_is_half_where_the_gate_passes() -> None:
    assert allowed_by(gate()) is torch.bfloat16
    assert allowed_by(NumericGate("cpu", (torch.bfloat16,))) is torch.bfloat16


def test_training_precision_is_32_bits_where_products_are_wrong() -> None:
    def nan(one, other):
        return torch.matmul(one, other) * float("nan")

    def off(one, other):
        return torch.matmul(one, other) * 1.02

    for wrong in (nan, off):
        assert allowed_by(gate(product=wrong)) is torch.float32
