"""Torch's own counter of operations, to compare ours with what a training executes."""

from math import prod

import torch
from torch.utils.flop_counter import FlopCounterMode


def executed_operations() -> FlopCounterMode:
    """Returns torch's counter, corrected for the gradients of grouped convolutions.

    Torch counts these as if every output channel depended on every input channel.
    """
    return FlopCounterMode(
        display=False, custom_mapping={torch.ops.aten.convolution_backward: _convolution_backward}
    )


def _convolution_backward(out_gradient, _inputs, kernel, *more, **_) -> int:
    wanted = more[-1]
    one_pass = 2 * out_gradient[0] * prod(out_gradient[2:]) * prod(kernel)
    return one_pass * (wanted[0] + wanted[1])
