"""Precision of a device: the choice for training, and the error of a model in half precision."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache

import torch

from ekya.models.edge.model import EdgeModel
from ekya.system.numeric_check import NumericGate, relative_error


def training_precision(
    device: str, scope: Callable[[], AbstractContextManager[None]] = nullcontext
) -> torch.dtype:
    """Returns the type for retrainings: bfloat16 on a GPU that supports it and passes the gate, else float32.

    A CPU's cores have no unit for bfloat16 and stay with 32 bits.

    Args:
        device: torch device.
        scope: context of the job's share: the gate runs on the part of the GPU where the job will train.
    """
    if torch.device(device).type != "cuda" or not torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.float32
    with scope():
        return _precision_of(device)


@lru_cache
def _precision_of(device: str) -> torch.dtype:
    return allowed_by(NumericGate(device, (torch.bfloat16,)))


def allowed_by(gate: NumericGate) -> torch.dtype:
    """Returns bfloat16 if its gate is passed, otherwise float32."""
    return torch.bfloat16 if all(checked.passed for checked in gate.run_checks()) else torch.float32


_PICTURES, _SIDE = 32, 32


def half_error(halved: EdgeModel, exact: EdgeModel) -> float:
    """Returns the ``relative_error`` of the logits of a model in half precision, on images of noise.

    Half precision has a small range, and some kernels have returned NaN on a part of a GPU, so every device
    is checked.
    """
    weight = next(halved.parameters())
    made = torch.Generator().manual_seed(0)
    pictures = torch.randn(_PICTURES, 3, _SIDE, _SIDE, generator=made).to(weight.device)
    with torch.inference_mode():
        return relative_error(halved(pictures.to(weight.dtype)), exact(pictures))
