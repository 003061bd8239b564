"""Tells whether an ONNX file holds the weights of a detector."""

from pathlib import Path

import torch
from torch import nn

from ekya.core.errors import UserError
from ekya.models.edge.detection.weights import PUBLISHED, kernels_of
from ekya.models.edge.forward import PLAIN
from ekya.models.edge.model import EdgeModel
from ekya.models.edge.predictor import prepared

_ROUNDING = 1e-3
"""Largest difference of equal weights, relative to the largest of a kernel."""


def is_same_network(model: EdgeModel, path: Path) -> bool:
    """Returns whether the convolutions of an ONNX file are those of a detector, in order.

    Batch normalisations of either may be merged into them.

    Args:
        model: the detector.
        path: any file; one that is no ONNX file holds another network.
    """
    if path.suffix.lower() != ".onnx":
        return False
    try:
        theirs = kernels_of(path)
    except UserError:
        return False
    merged = prepared(model, "cpu", PLAIN)
    published = PUBLISHED.get(model.architecture)
    first = None if published is None else published.first
    ours = [
        layer.weight.flip(1) if f"{name}.weight" == first else layer.weight
        for name, layer in merged.named_modules()
        if isinstance(layer, nn.Conv2d)
    ]
    return len(ours) == len(theirs) and all(
        own.shape == other.shape
        and bool(torch.allclose(own, other, rtol=0.0, atol=_ROUNDING * float(other.abs().max())))
        for own, (other, _) in zip(ours, theirs, strict=True)
    )
