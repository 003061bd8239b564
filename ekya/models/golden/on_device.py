"""Places the network of a golden model on a device; on a GPU in half precision, if that computes the same."""

import copy
import logging
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ekya.models.golden.detections import ON_CPU, RunsOn
from ekya.system.numeric_check import MOST_ERROR, relative_error

_LOG = logging.getLogger(__name__)


def place_network(network: nn.Module, device: str, shape: tuple[int, ...]) -> tuple[nn.Module, RunsOn]:
    """Returns a network that takes and gives float32 on a device, and how it runs there.

    On a CPU it is the network itself.

    Args:
        network: maps a batch of pictures to a tensor, or to tensors by name; may be moved.
        device: torch's name.
        shape: of a batch of noise, (N, 3, H, W), on which both precisions are compared.
    """
    exact = network.eval().to(device)
    if device == "cpu":
        return exact, ON_CPU
    halved = _HalfPrecision(copy.deepcopy(exact))
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    error = _error_of(halved, exact, noise.to(device))
    if error <= MOST_ERROR:
        return halved, RunsOn(device, "float16")
    _LOG.warning("the golden model computes in 32 bits: in float16 it is off by %.2g", error)
    return exact, RunsOn(device)


class _HalfPrecision(nn.Module):
    """Runs a network in float16, in place, between float32."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network.half()

    def forward(self, pictures: Tensor) -> Any:
        given = self.network(pictures.half())
        return (
            given.float() if isinstance(given, Tensor) else {name: of.float() for name, of in given.items()}
        )


@torch.inference_mode()
def _error_of(halved: nn.Module, exact: nn.Module, pictures: Tensor) -> float:
    """Returns the largest ``relative_error`` of what a network gives; infinite where a kernel is missing."""
    try:
        found, expected = _by_name(halved(pictures)), _by_name(exact(pictures))
    except RuntimeError:
        return math.inf
    return max(relative_error(found[name], expected[name]) for name in expected)


def _by_name(given: Tensor | Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    return {"": given} if isinstance(given, Tensor) else given
