"""Checks a matrix product and a convolution on a device against the CPU.

Some half-precision kernels have returned NaN on some GPUs, so a type is checked before it is used.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import conv2d

MOST_ERROR = 1e-2
"""Relative to the largest value. Rounding to the coarsest type in use, bfloat16, gives 0.002 to 0.004."""

_SIDE, _SHAPE = 512, (4, 32, 32, 32)

Multiply = Callable[[Tensor, Tensor], Tensor]


def computes_right(
    device: str, dtype: torch.dtype, *, product: Multiply = torch.matmul, convolve: Multiply = conv2d
) -> bool:
    """Returns whether both operations agree with the CPU in double precision; waits for the device.

    Inputs are rounded to the type first, so that only arithmetic is measured.

    Args:
        device: torch device.
        dtype: type to compute in.
        product, convolve: functions to check, in place of torch's.
    """
    made = torch.Generator().manual_seed(0)
    channels = _SHAPE[1]
    for function, expected, shapes in (
        (product, torch.matmul, ((_SIDE, _SIDE), (_SIDE, _SIDE))),
        (convolve, conv2d, (_SHAPE, (2 * channels, channels, 3, 3))),
    ):
        left, right = (torch.randn(shape, generator=made).to(dtype) for shape in shapes)
        try:
            # The copy to the CPU waits for the kernels, so their errors are raised here.
            found = function(left.to(device), right.to(device)).cpu().double()
        except RuntimeError:
            return False
        if not relative_error(found, expected(left.double(), right.double())) < MOST_ERROR:
            return False
    return True


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Returns the largest error relative to the largest expected value; infinite if one is not finite."""
    found = found.to(expected.dtype)
    if not bool(torch.isfinite(found).all()):
        return math.inf
    return float((found - expected).abs().max() / expected.abs().max())
