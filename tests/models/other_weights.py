"""Models with other weights than fresh ones, where the weights of two differ, and when they are freed."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ekya.models.edge.architecture_table import DETECTORS, block_names
from ekya.models.edge.model import EdgeModel, build_edge_model, clone

OUTPUTS = ("person", "kite", "car", "car")
"""Of the tested detectors: two outputs count for one class of the fleet, one for none."""


def retrained(model: EdgeModel, blocks: int, seed: int) -> EdgeModel:
    """Returns a copy with other weights in its last ``blocks`` blocks and its head."""
    other = clone(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in (*list(other.blocks)[len(other.blocks) - blocks :], other.head):
            for weight in module.parameters():
                weight.add_(0.3 * torch.randn(weight.shape, generator=generator))
            for part in module.modules():
                if isinstance(part, nn.BatchNorm2d):
                    part.running_mean.add_(0.1)
    return other


def lived_in(model: EdgeModel) -> EdgeModel:
    """Sets statistics unlike those of a fresh model; returns the model."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.uniform_(-0.1, 0.1, generator=generator)
                module.running_var.uniform_(0.8, 1.2, generator=generator)
    return model


def every_detector_lived_in() -> dict[str, EdgeModel]:
    """Returns one detector of each architecture, with statistics unlike those of fresh weights."""
    return {name: lived_in(build_edge_model(OUTPUTS, 0, seed=3, architecture=name)) for name in DETECTORS}


def changed(before: EdgeModel, after: EdgeModel) -> set[str]:
    """Returns the names of the blocks in which a weight or statistic has changed."""
    names = block_names(before.architecture)
    return {
        name
        for name, old, new in zip(names, before.blocks, after.blocks, strict=True)
        if not same_weights(old, new)
    }


def same_weights(a: nn.Module, b: nn.Module) -> bool:
    """Returns whether all weights and statistics of two modules are equal to the bit."""
    return all(torch.equal(*pair) for pair in zip(_tensors(a), _tensors(b), strict=True))


def freed_with_predictor(make: Callable[[], Any]) -> bool:
    """Returns whether a predictor's copy of a model is freed with it, without garbage collection."""
    predictor = make()
    copied = weakref.ref(predictor.model)
    gc.disable()
    try:
        del predictor
        return copied() is None
    finally:
        gc.enable()


def _tensors(module: nn.Module) -> list[Tensor]:
    return list(module.state_dict().values())
