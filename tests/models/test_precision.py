import torch

from ekya.models.training import trainer
from ekya.models.training.trainer import training_precision


def test_training_precision_on_a_cpu_is_32_bits() -> None:
    assert training_precision("cpu") is torch.float32


def test_training_precision_is_half_where_the_gpu_computes_right(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    for place, right in enumerate((True, False)):
        monkeypatch.setattr(trainer, "computes_right", lambda device, dtype, right=right: right)
        expected = torch.bfloat16 if right else torch.float32
        assert training_precision(f"cuda:{place}") is expected
