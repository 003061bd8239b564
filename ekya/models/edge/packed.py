"""Packs convolution kernels once into the layout of the CPU's library, instead of in every pass.

oneDNN multiplies blocks of channels, and reorders a kernel from torch's layout into these in every pass. For
the six crops of a frame that is half of a ResNet18's time.

The right layout depends on the instruction set and on the height and width of the images, not on their
number. Packed without a shape, or for another one, a kernel may be far slower than plain. So kernels are
packed when images of a size first come, and only if a self-test found this faster
(``models/edge/self_test.py``).
"""

from typing import Any

import torch
from torch import Tensor, nn

_ONE_DNN: Any = torch.ops.mkldnn  # used by torch's own compiler; it has no public name

_TAKES = {
    "_reorder_convolution_weight": "self padding stride dilation groups input_size",
    "_convolution_pointwise": "X W B padding stride dilation groups attr scalars algorithm",
}
"""The private operators that are used, and their arguments."""

_HEAVY = 1 << 15
"""Minimum weights of a packed kernel. Reordering a lighter or 1x1 kernel costs less than the packed call."""


class PackedConvolution(nn.Module):
    """Convolution for inference in 32 bits on a CPU, with its kernel packed for each size of images."""

    def __init__(self, convolution: nn.Conv2d) -> None:
        super().__init__()
        self._how = (
            [int(side) for side in convolution.padding],
            list(convolution.stride),
            list(convolution.dilation),
            convolution.groups,
        )
        self._bias = convolution.bias
        self._loose: Tensor | None = convolution.weight
        self._kernels: dict[tuple[int, ...], Tensor] = {}

    def forward(self, images: Tensor) -> Tensor:
        """Maps (N, C, h, w) to (N, D, h', w'), as the convolution does."""
        size = tuple(images.shape[2:])
        kernel = self._kernels.get(size)
        if kernel is None:
            kernel = self._packed_for(images)
        convolved: Tensor = _ONE_DNN._convolution_pointwise(
            images, kernel, self._bias, *self._how, "none", [], ""
        )
        return convolved

    def _packed_for(self, images: Tensor) -> Tensor:
        # The unpacked kernel is dropped after the first packing; any packed one can be converted back.
        loose = self._loose if self._loose is not None else next(iter(self._kernels.values())).to_dense()
        packed: Tensor = _ONE_DNN._reorder_convolution_weight(loose, *self._how, list(images.shape))
        self._kernels[tuple(images.shape[2:])] = packed
        self._loose = None
        return packed


def pack(model: nn.Module) -> None:
    """Packs the heavy convolutions of a model, in place; does nothing where torch cannot pack."""
    if not can_pack():
        return
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Conv2d) and _is_heavy(child):
                setattr(parent, name, PackedConvolution(child))


def _is_heavy(convolution: nn.Conv2d) -> bool:
    return convolution.weight.numel() >= _HEAVY and max(convolution.kernel_size) > 1


def can_pack() -> bool:
    """Returns whether torch has the private operators that packing needs, with the expected arguments."""
    return all(_arguments(name) == takes.split() for name, takes in _TAKES.items())


def _arguments(operator: str) -> list[str]:
    """Returns the names of a private operator's arguments; empty if torch was built without it."""
    found = getattr(_ONE_DNN, operator, None)
    overload = getattr(found, "default", None)
    return [] if overload is None else [argument.name for argument in overload._schema.arguments]
