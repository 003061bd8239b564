"""Checks a matrix product and a convolution on a device against the CPU.

Some half-precision kernels have returned NaN on a part of a GPU, so every device is checked.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import conv2d

from ekya.system.numeric_result import Checked


@dataclass(frozen=True, slots=True)
class GateSizes:
    """Sizes of the operands.

    Attributes:
        side: rows and columns of both matrices.
        images, channels, pixels: of the convolution's input; its output has twice as many channels.
    """

    side: int = 512
    images: int = 4
    channels: int = 32
    pixels: int = 32


Multiply = Callable[[Tensor, Tensor], Tensor]


class NumericGate:
    """Checks a matrix product and a convolution in every type against the CPU in double precision.

    The CPU's results are computed once, from inputs that were rounded to the type first, so that only
    arithmetic is measured.
    """

    def __init__(
        self,
        device: str,
        dtypes: Sequence[torch.dtype],
        *,
        sizes: GateSizes | None = None,
        product: Multiply = torch.matmul,
        convolve: Multiply = conv2d,
    ) -> None:
        """Prepares inputs on the device.

        Args:
            device: torch device of the levels.
            dtypes: the types that jobs use.
            sizes: of the inputs.
            product, convolve: functions to check, in place of torch's.
        """
        sizes = sizes or GateSizes()
        made = torch.Generator().manual_seed(0)
        matrix = torch.randn(sizes.side, sizes.side, generator=made, dtype=torch.float64)
        other = torch.randn(sizes.side, sizes.side, generator=made, dtype=torch.float64)
        shape = (sizes.images, sizes.channels, sizes.pixels, sizes.pixels)
        images = torch.randn(shape, generator=made, dtype=torch.float64)
        kernels = torch.randn(2 * sizes.channels, sizes.channels, 3, 3, generator=made, dtype=torch.float64)
        self._cases = [
            _Case(operation, function, dtype, left, right, expected, device)
            for dtype in dtypes
            for operation, function, expected, left, right in (
                ("product", product, torch.matmul, matrix, other),
                ("convolution", convolve, conv2d, images, kernels),
            )
        ]

    def run_checks(self) -> tuple[Checked, ...]:
        """Runs all checks on the calling thread's stream and waits for them."""
        return tuple(case.check() for case in self._cases)


class _Case:
    def __init__(
        self,
        operation: str,
        function: Multiply,
        dtype: torch.dtype,
        left: Tensor,
        right: Tensor,
        expected: Multiply,
        device: str,
    ) -> None:
        self._operation = operation
        self._function = function
        self._dtype = dtype
        rounded, others = left.to(dtype), right.to(dtype)
        self._expected = expected(rounded.double(), others.double())
        self._left, self._right = rounded.to(device), others.to(device)

    def check(self) -> Checked:
        name = str(self._dtype).removeprefix("torch.")
        try:
            # The copy to the CPU waits for the kernels, so their errors are raised here.
            answer = self._function(self._left, self._right).cpu().double()
        except RuntimeError as refused:
            return Checked(self._operation, name, math.inf, False, str(refused).splitlines()[0])
        error = relative_error(answer, self._expected)
        return Checked(self._operation, name, error, math.isfinite(error))


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Returns the largest error relative to the largest expected value; infinite if one is not finite."""
    found = found.to(expected.dtype)
    if not bool(torch.isfinite(found).all()):
        return math.inf
    return float((found - expected).abs().max() / expected.abs().max())
