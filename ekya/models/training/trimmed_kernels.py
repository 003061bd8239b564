"""Convolutions whose output is one pixel, without the part of their kernels that only meets padding.

At 32 pixels the last block of a ResNet18 works on maps of 2x2 and 1x1 pixels. Most of a 3x3 kernel lies
beside such a map: it is multiplied by zeros and its gradient is zero, and yet it would be reordered and
updated in every step.
"""

import copy
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ekya.models.edge.model import EdgeModel, Suffix, split_at


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


def trim_kernels(suffix: Suffix, start: EdgeModel, trainable_blocks: int, side: int) -> list[nn.Conv2d]:
    """Trims the kernels in the trainable end of a classifier, in place.

    Args:
        suffix: of a copy of the start model.
        start: the start model, which is kept anyway; it is not changed.
        trainable_blocks: in the suffix.
        side: of all images, in pixels.

    Returns:
        The convolutions of the start model that are trained in parts.
    """
    trimmed = []
    device = next(suffix.parameters()).device
    for name, (whole, height, width) in _find_trimmed(start, trainable_blocks, side).items():
        parent, _, child = name.rpartition(".")
        setattr(suffix.get_submodule(parent), child, TrimmedConvolution(whole, height, width).to(device))
        trimmed.append(whole)
    return trimmed


def restore_kernels(model: nn.Module) -> None:
    """Puts whole convolutions into the places of trimmed ones, in place, with the weights of these."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, TrimmedConvolution):
                setattr(parent, name, child.restore_whole())


def _find_trimmed(
    start: EdgeModel, trainable_blocks: int, side: int
) -> dict[str, tuple[nn.Conv2d, int, int]]:
    """Returns by name in the suffix what is to be trimmed, with height and width of its input."""
    prefix, suffix = split_at(start, trainable_blocks)
    found: dict[str, tuple[nn.Conv2d, int, int]] = {}

    def note_size(name: str, module: nn.Conv2d, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        height, width = inputs[0].shape[2:]
        if tuple(output.shape[2:]) == (1, 1) and _reaches_beside(module, (height, width)):
            found[name] = module, height, width

    with ExitStack() as hooks, torch.no_grad():
        for name, module in suffix.named_modules():
            # A block that is itself a convolution stays: its parent here is not its parent in the model.
            if isinstance(module, nn.Conv2d) and name.count(".") > 1:
                hooks.callback(module.register_forward_hook(partial(note_size, name)).remove)
        if trainable_blocks:
            # One pass says how large the maps are.
            suffix(prefix(torch.zeros(1, 3, side, side, device=next(start.parameters()).device)))
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
