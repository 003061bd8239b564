"""Copies of a model with other weights."""

import torch
from torch import nn

from ekya.models.edge.model import EdgeModel, clone


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
