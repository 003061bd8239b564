"""Convolutions whose output is one pixel, without the part of their kernels that only meets padding.

At 32 pixels the last block of a ResNet18 works on maps of 2x2 and 1x1 pixels. Most of a 3x3 kernel lies
beside such a map: it is multiplied by zeros and its gradient is zero, and yet it would be reordered and
updated in every step.
"""

import copy
from contextlib import ExitStack
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ekya.models.edge.footprint import shapes_of
from ekya.models.edge.model import Suffix


class TrimmedConvolution(nn.Module):
    """A convolution of maps of one size whose output is one pixel.

    Args:
        whole: the convolution that it replaces; it is not changed.
        height, width: of its input, as far as a kernel at the output's pixel reaches.

    Attributes:
        whole: as given, in a tuple, which keeps its weights out of those that are trained.
        weight: (D, C, height, width), the part of the kernel that lies on the map.
    """

    def __init__(self, whole: nn.Conv2d, height: int, width: int) -> None:
        super().__init__()
        self.whole = (whole,)
        top, left = (int(padding) for padding in whole.padding)
        self._window = (slice(None), slice(None), slice(top, top + height), slice(left, left + width))
        self.weight = nn.Parameter(whole.weight.detach()[self._window].contiguous().clone())
        self.bias = None if whole.bias is None else nn.Parameter(whole.bias.detach().clone())

    def forward(self, maps: Tensor) -> Tensor:
        """Maps (N, C, height, width) to (N, D, 1, 1)."""
        return linear(maps.flatten(1), self.weight.flatten(1), self.bias)[:, :, None, None]

    def restore_whole(self) -> nn.Conv2d:
        """Returns the whole convolution with these weights; what lies beside the map is as it was."""
        (whole,) = self.whole
        kernel = whole.weight.detach().clone()
        kernel[self._window].copy_(self.weight.detach())
        replaced: dict[int, Any] = {id(whole.weight): nn.Parameter(kernel)}
        if whole.bias is not None and self.bias is not None:
            replaced[id(whole.bias)] = nn.Parameter(self.bias.detach().to(kernel.device, copy=True))
        return copy.deepcopy(whole, replaced)


def trim_kernels(suffix: Suffix, start: Suffix, architecture: str, side: int) -> list[nn.Conv2d]:
    """Trims the kernels in the trainable end of a classifier, in place.

    Args:
        suffix: of the model.
        start: of a model with the same weights that is kept anyway; it is not changed.
        architecture: of the model.
        side: of its images, in pixels.

    Returns:
        The convolutions of ``start`` that are trained in parts.
    """
    trimmed = []
    for name, (height, width) in _find_trimmed(architecture, len(suffix.blocks), side).items():
        parent, _, child = name.rpartition(".")
        whole = start.get_submodule(name)
        if isinstance(whole, nn.Conv2d):
            device = next(suffix.parameters()).device
            setattr(suffix.get_submodule(parent), child, TrimmedConvolution(whole, height, width).to(device))
            trimmed.append(whole)
    return trimmed


def restore_kernels(model: nn.Module) -> None:
    """Puts whole convolutions into the places of trimmed ones, in place, with the weights of these."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, TrimmedConvolution):
                setattr(parent, name, child.restore_whole())


@lru_cache
def _find_trimmed(architecture: str, trainable_blocks: int, side: int) -> dict[str, tuple[int, int]]:
    """Returns height and width of the input of each convolution to be trimmed, by its name in the suffix."""
    parts = shapes_of(architecture, 0, trainable_blocks, side)
    found: dict[str, tuple[int, int]] = {}

    def note_size(name: str, module: nn.Conv2d, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        height, width = inputs[0].shape[2:]
        if tuple(output.shape[2:]) == (1, 1) and _reaches_beside(module, (height, width)):
            found[name] = height, width

    with ExitStack() as hooks, torch.no_grad():
        for name, module in parts.suffix.named_modules():
            # A block that is itself a convolution stays: its parent here is not its parent in the model.
            if isinstance(module, nn.Conv2d) and name.count(".") > 1:
                hooks.callback(module.register_forward_hook(partial(note_size, name)).remove)
        parts.suffix(parts.prefix(parts.images))
    return found


def _reaches_beside(convolution: nn.Conv2d, size: tuple[int, int]) -> bool:
    """Returns whether the kernel, at the first pixel of the output, lies on the whole map and beside it."""
    paddings = convolution.padding
    if isinstance(paddings, str) or convolution.groups > 1 or convolution.dilation != (1, 1):
        return False
    reached = zip(size, paddings, convolution.kernel_size, strict=True)
    return size != convolution.kernel_size and all(
        side + padding <= kernel for side, padding, kernel in reached
    )
