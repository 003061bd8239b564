"""Depthwise convolution that trains faster on a CPU than torch's.

Torch takes ten times as long for the gradient of a large depthwise kernel as for the convolution itself.
That gradient is a convolution too: of each channel of each image with its output's gradient as the kernel.
Computed so, it takes a third to a half of the time.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

_IMAGES = 4
"""In one convolution: with more, its temporary memory comes from the system anew each time."""


class DepthwiseConv2d(nn.Conv2d):
    """Convolution of each channel with its own kernel, without bias, that keeps the size of the map.

    Args:
        channels: of input and output.
        side: of the kernel, odd.
    """

    def __init__(self, channels: int, side: int) -> None:
        super().__init__(channels, channels, side, 1, side // 2, groups=channels, bias=False)

    def forward(self, maps: Tensor) -> Tensor:
        """Maps (N, C, h, w) to the same shape."""
        trains = torch.is_grad_enabled() and self.weight.requires_grad
        if not trains or self.bias is not None or maps.device.type != "cpu" or maps.dtype != torch.float32:
            return super().forward(maps)
        convolved: Tensor = _Depthwise.apply(maps, self.weight)
        return convolved


class _Depthwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, maps: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(maps, weight)
        return conv2d(maps, weight, padding=weight.shape[-1] // 2, groups=len(weight))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        (gradient,) = gradients
        maps, weight = ctx.saved_tensors
        padding = weight.shape[-1] // 2
        of_maps = of_weight = None
        if ctx.needs_input_grad[0]:
            # The kernel is odd and the map keeps its size, so this is the convolution with it turned round.
            of_maps = conv2d(gradient, weight.flip(2, 3), padding=padding, groups=len(weight))
        if ctx.needs_input_grad[1]:
            parts = zip(torch.split(maps, _IMAGES), torch.split(gradient, _IMAGES), strict=True)
            of_weight = torch.stack([_of_weight(*part, padding) for part in parts]).sum(dim=0)
        return of_maps, of_weight


def _of_weight(maps: Tensor, gradient: Tensor, padding: int) -> Tensor:
    """Returns the (C, 1, k, k) gradient of the kernels."""
    images, channels, height, width = maps.shape
    each = images * channels
    kernels = gradient.reshape(each, 1, height, width)
    swept = conv2d(maps.reshape(1, each, height, width), kernels, padding=padding, groups=each)
    return swept.reshape(images, channels, 1, *swept.shape[2:]).sum(dim=0)
