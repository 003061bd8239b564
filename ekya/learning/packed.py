"""Kernels laid out once as a CPU's library computes with them, and not anew in every pass.

oneDNN multiplies blocks of channels. Given a kernel as torch keeps it, it brings it into that shape first, in
every pass. For the six crops of a frame that is half of a ResNet18's.
"""

from typing import Any

import torch
from torch import Tensor, nn

_ONE_DNN: Any = torch.ops.mkldnn  # what torch's own compiler uses for this; it has no public name

_HEAVY = 1 << 15
"""Weights. Lighter kernels cost less to lay out than our call does, those of one pixel next to nothing."""


class PackedConvolution(nn.Module):
    """A convolution that only predicts, in 32 bits on a CPU."""

    def __init__(self, convolution: nn.Conv2d) -> None:
        super().__init__()
        self._how = (
            [int(side) for side in convolution.padding],
            list(convolution.stride),
            list(convolution.dilation),
            convolution.groups,
        )
        self._bias = convolution.bias
        self._kernel: Tensor = _ONE_DNN._reorder_convolution_weight(convolution.weight, *self._how, None)

    def forward(self, images: Tensor) -> Tensor:
        """(N, C, h, w) to (N, D, h', w'), as the convolution."""
        convolved: Tensor = _ONE_DNN._convolution_pointwise(
            images, self._kernel, self._bias, *self._how, "none", [], ""
        )
        return convolved


def pack(model: nn.Module) -> None:
    """Packs the heavy convolutions of a model, in place; those that the library here cannot are left."""
    if not can_pack():
        return
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Conv2d) and _is_heavy(child):
                setattr(parent, name, PackedConvolution(child))


def _is_heavy(convolution: nn.Conv2d) -> bool:
    return convolution.weight.numel() >= _HEAVY and max(convolution.kernel_size) > 1


def can_pack() -> bool:
    """Whether torch here was built with what packing needs."""
    return all(hasattr(_ONE_DNN, name) for name in ("_reorder_convolution_weight", "_convolution_pointwise"))
