"""Trunks of edge models: the networks of ``architecture_table.py``, cut into blocks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from ekya.models.edge.architecture_table import CUTS, FASTESTDET, SSDLITE, Cut
from ekya.models.edge.detection import fastestdet, ssdlite
from ekya.models.edge.detection.detector import Detector
from ekya.models.edge.resnet import RESNETS


@dataclass(frozen=True, slots=True, eq=False)
class Trunk:
    """Layers of an architecture from the input to the features.

    Attributes:
        blocks: by name, from the input on; each takes the output of the one before, a single tensor.
        features: channels of the last block's output.
        detector: heads, decoding and loss of a detector; None for a classifier.
    """

    blocks: Mapping[str, nn.Module]
    features: int
    detector: Detector | None = None


def fresh_network(architecture: str) -> nn.Module:
    """Returns torchvision's network of an architecture, or one with the same weights, freshly initialised."""
    cut = CUTS[architecture]
    own = RESNETS.get(architecture)
    return _of_torchvision(architecture, cut) if own is None else own(**cut.options)


def trunk_of(network: nn.Module, architecture: str) -> Trunk:
    """Cuts a network of ``fresh_network`` into the blocks of ``CUTS``."""
    cut = CUTS[architecture]
    if cut.full_size is not None:
        halving: Any = network.get_submodule(cut.full_size)
        halving.stride = (1, 1)
    return Trunk({name: _together(network, paths) for name, paths in cut.blocks.items()}, cut.features)


def _of_torchvision(architecture: str, how: Cut) -> nn.Module:
    # Imported here: it takes as long as torch, and a process whose models are ResNets does not need it.
    from torchvision.models import get_model

    options = dict(how.options)
    if how.norm is not None:
        options["norm_layer"] = partial(nn.BatchNorm2d, eps=how.norm.eps, momentum=how.norm.momentum)
    net: nn.Module = get_model(architecture, weights=None, **options)
    return net


def _together(net: nn.Module, paths: tuple[str, ...]) -> nn.Module:
    modules = [net.get_submodule(path) for path in paths]
    return modules[0] if len(modules) == 1 else nn.Sequential(*modules)


def _fresh_trunk(architecture: str) -> Trunk:
    return trunk_of(fresh_network(architecture), architecture)


def _of_fastestdet() -> Trunk:
    return Trunk(fastestdet.blocks(), fastestdet.FEATURES, fastestdet.FastestDet())


def _of_ssdlite() -> Trunk:
    return Trunk(ssdlite.blocks(), ssdlite.FEATURES, ssdlite.SsdLite())


EDGE_MODELS: Mapping[str, Callable[[], Trunk]] = {
    **{name: partial(_fresh_trunk, name) for name in CUTS},
    FASTESTDET: _of_fastestdet,
    SSDLITE: _of_ssdlite,
}
"""Builders of trunks with fresh weights, by name of the architecture."""


def get_ready_to_build(architecture: str) -> None:
    """Imports what a trunk is built of, so that a process's first build takes no longer than the next."""
    with torch.device("meta"):
        EDGE_MODELS[architecture]()
