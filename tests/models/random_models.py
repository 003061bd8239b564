"""Edge models with random weights whose answers vary from picture to picture."""

import numpy as np
import torch

from ekya.models.edge.model import EdgeModel, build_edge_model, to_input

OUTPUTS = ("bus", "car", "dog", "person")


def lively_model(architecture: str) -> EdgeModel:
    """Returns a model with random weights whose normalisations fit noise, so that its answers vary."""
    model = build_edge_model(OUTPUTS, 0, 3, architecture).train()
    for layer in model.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.momentum = 1.0
    side = 32 if model.detector is None else 96
    noise = np.random.default_rng(4).integers(0, 256, (4, side, side, 3)).astype(np.uint8)
    with torch.no_grad():
        model(to_input(noise, "cpu"))
        if model.detector is None:
            model.head.weight.mul_(8)
    return model.eval()
