"""Golden model of the paper: torchvision's ResNeXt-101 with ImageNet weights (paper §5)."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torchvision.models import get_model, get_model_weights

from ekya.labeling.golden_classifier import ByFleetClass, GoldenClassifier, grouped
from ekya.labeling.torchvision_weights import load_weights

_IMAGENET_SIDE = 224


def open_resnext101(
    name: str, weights: Path | None, classes: tuple[str, ...], class_map: Path
) -> GoldenClassifier:
    """Opens ResNeXt-101 with ImageNet weights, the paper's golden model.

    Args:
        name: one of ``RESNEXT101S``.
        weights: a local file, or None for torchvision's download.
        classes: the fleet's.
        class_map: file that maps ImageNet's categories to the fleet's classes.

    Raises:
        UserError: the weights cannot be loaded or do not fit, or a class has no categories.
    """
    preset = get_model_weights(name).DEFAULT
    categories = tuple(str(category) for category in preset.meta["categories"])
    grouping = grouped(classes, categories, class_map, name)
    network = get_model(name, weights=None)
    load_weights(network, name, weights)
    mean, std = preset.transforms().mean, preset.transforms().std
    return GoldenClassifier(classes, ByFleetClass(_Normalised(network, mean, std), grouping), _IMAGENET_SIDE)


class _Normalised(nn.Module):
    """Normalises RGB in [0, 1] as in the training of the weights, then runs the network."""

    def __init__(self, network: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("mean", torch.tensor(mean).reshape(3, 1, 1))
        self.register_buffer("std", torch.tensor(std).reshape(3, 1, 1))

    def forward(self, crops: Tensor) -> Tensor:
        """Maps (N, 3, H, W) to logits."""
        logits: Tensor = self.network((crops - self.get_buffer("mean")) / self.get_buffer("std"))
        return logits
