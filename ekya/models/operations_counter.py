"""Counts the operations of networks; a multiply-add counts twice.

Not by torch's ``FlopCounterMode``, which loads torch's compiler, a second or more, and counts the gradients
of grouped convolutions as if every output channel depended on every input channel.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import prod

from torch import Tensor, nn


@dataclass(slots=True)
class OperationsCount:
    """Operations of the convolutions and linear layers of a network that has run.

    Attributes:
        forward: of the passes.
        backward: of the gradients that a step back through them would compute.
    """

    forward: int = 0
    backward: int = 0


@contextmanager
def count_operations(network: nn.Module) -> Iterator[OperationsCount]:
    """Yields the operations of a network's passes while the block lasts."""
    counted = OperationsCount()

    def count(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        weight: Tensor = layer.get_parameter("weight")
        # A kernel's second dimension is the channels of one group.
        one_pass = 2 * output.numel() * prod(weight.shape[1:])
        counted.forward += one_pass
        if output.requires_grad:
            counted.backward += one_pass * (inputs[0].requires_grad + weight.requires_grad)

    with ExitStack() as hooks:
        for layer in network.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                hooks.callback(layer.register_forward_hook(count).remove)
        yield counted
