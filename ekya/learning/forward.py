"""How a model that only predicts is run: every choice that depends on the device, with its reason."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch


@dataclass(frozen=True, slots=True)
class ForwardWay:
    """One way to run forward passes. All give the same classes, and the same scores but for rounding.

    Attributes:
        channels_last: in memory the channels of a pixel lie side by side, of pictures and of kernels.
        packed: kernels are laid out once as the CPU's library computes with them (``learning/packed.py``).
        half: computes in this type where the model's own answers allow it (``learning/half.py``); None stays
            with 32 bits.
        graphs: a pass is recorded once a level and batch size, and launched as a whole since
            (``learning/graphs.py``).
        crops_at_once: crops in one pass, at most.
        joining: of several models in one call, how blocks are joined that are not alike
            (``learning/batched.py``); None asks those one after the other.
    """

    channels_last: bool = False
    packed: bool = False
    half: torch.dtype | None = None
    graphs: bool = False
    crops_at_once: int = 32
    joining: str | None = None


PLAIN = ForwardWay()
"""As torch does it by itself; what others are measured against."""

WAYS: Mapping[str, ForwardWay] = MappingProxyType(
    {
        # Measured on x86-64 with AVX-512 (docs/gpu.md). Laying out the kernels of a ResNet18 takes as long as
        # the six crops of a frame; the small models have light ones. No CPU core here counts faster in half
        # the bits. Passes of 128 crops are a third faster than of 32, and those of 256 no better for all.
        # Joined blocks of a ResNet18 take longer than one after the other.
        "cpu": ForwardWay(channels_last=True, packed=True, crops_at_once=128),
        # Nothing has been measured on a GPU, so nothing is on there. What `make gpu-check` shows to be faster
        # is switched on here, and nowhere else.
        "cuda": PLAIN,
    }
)
"""By torch's kind of device. ``experiments/bench_inference.py`` measures what is chosen between."""


def forward_way(device: str) -> ForwardWay:
    """What is best on a device such as ``cpu`` or ``cuda:1``, as far as it has been measured."""
    return WAYS.get(torch.device(device).type, PLAIN)
