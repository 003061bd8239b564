"""In which precision a device may train: half of the bits where the device counts right with them."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache

import torch

from ekya.arithmetic.gate import NumericGate


def training_precision(
    device: str, scope: Callable[[], AbstractContextManager[None]] = nullcontext
) -> torch.dtype:
    """What a retraining on this device computes in: bfloat16 on a GPU that has it and counts right with it.

    A CPU's cores have no unit for it, and stay with 32 bits.

    Args:
        device: torch's name of it.
        scope: of the job's share: a GPU is asked on the part of it where the job will train.
    """
    if torch.device(device).type != "cuda" or not torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.float32
    with scope():
        return _precision_of(device)


@lru_cache
def _precision_of(device: str) -> torch.dtype:
    return allowed_by(NumericGate(device, (torch.bfloat16,)))


def allowed_by(gate: NumericGate) -> torch.dtype:
    """bfloat16 where a gate for it is passed, otherwise float32."""
    return torch.bfloat16 if all(checked.passed for checked in gate.check()) else torch.float32
