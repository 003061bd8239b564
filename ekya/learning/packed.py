"""Kernels laid out once as a CPU's library computes with them, and not anew in every pass.

oneDNN multiplies blocks of channels. Given a kernel as torch keeps it, it brings it into that layout first,
in every pass. For the six crops of a frame that is half of a ResNet18's time.

Which layout is right depends on the instruction set and on the height and width of the images, not on their
number. Packed without a shape, or for another one, a kernel may be far slower than plain. So kernels are
packed for each size of images when it first comes, and only where a self-test has found this faster
(``learning/self_test.py``).
"""

from typing import Any

import torch
from torch import Tensor, nn

_ONE_DNN: Any = torch.ops.mkldnn  # what torch's own compiler uses for this; it has no public name

_TAKES = {
    "_reorder_convolution_weight": "self padding stride dilation groups input_size",
    "_convolution_pointwise": "X W B padding stride dilation groups attr scalars algorithm",
}
"""The private operators that are used, and their arguments."""

_HEAVY = 1 << 15
"""Weights. Lighter kernels cost less to lay out than the packed call, those of one pixel next to nothing."""


class PackedConvolution(nn.Module):
    """A convolution that only predicts, in 32 bits on a CPU, its kernel laid out for the images' size."""

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
        """(N, C, h, w) to (N, D, h', w'), as the convolution."""
        size = tuple(images.shape[2:])
        kernel = self._kernels.get(size)
        if kernel is None:
            kernel = self._packed_for(images)
        convolved: Tensor = _ONE_DNN._convolution_pointwise(
            images, kernel, self._bias, *self._how, "none", [], ""
        )
        return convolved

    def _packed_for(self, images: Tensor) -> Tensor:
        # As torch keeps it, the kernel is in memory until it is packed once; then any layout gives it back.
        loose = self._loose if self._loose is not None else next(iter(self._kernels.values())).to_dense()
        packed: Tensor = _ONE_DNN._reorder_convolution_weight(loose, *self._how, list(images.shape))
        self._kernels[tuple(images.shape[2:])] = packed
        self._loose = None
        return packed


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
    """Whether torch here has what packing needs, with the arguments that are given to it."""
    return all(_arguments(name) == takes.split() for name, takes in _TAKES.items())


def _arguments(operator: str) -> list[str]:
    """Names of a private operator's arguments; empty where torch was built without it."""
    found = getattr(_ONE_DNN, operator, None)
    overload = getattr(found, "default", None)
    return [] if overload is None else [argument.name for argument in overload._schema.arguments]
