"""Golden models that classify crops (paper §5: a ResNeXt as the golden model)."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from torchvision.models import get_model, get_model_weights

from ekya.errors import UserError
from ekya.labeling.detections import Question
from ekya.labeling.resnext import load_resnext29
from ekya.labeling.weights import load_weights
from ekya.shipped import shipped_path
from ekya.streams.crops import crop_objects

RESNEXT101 = "resnext101_32x8d"

_BATCH = 32
_SMALL_SIDE = 32
_IMAGENET_SIDE = 224
_IMAGENET_MAP = "golden_models/imagenet_to_fleet.yaml"


class GoldenClassifier:
    """A ``GoldenModel`` that is given boxes and says what is in them; it finds no objects itself."""

    def __init__(self, classes: tuple[str, ...], network: nn.Module, side: int) -> None:
        """Wrap a network.

        Args:
            classes: the fleet's.
            network: (N, 3, side, side) float RGB in [0, 1] to (N, classes) scores.
            side: of a crop, pixels.
        """
        self._classes = classes
        self._network = network.eval()
        self._side = side
        self._operations_per_crop = 0

    @property
    def classes(self) -> tuple[str, ...]:
        """The fleet's classes."""
        return self._classes

    @property
    def background(self) -> None:
        """Every box is an object."""
        return None

    def label(self, items: Sequence[Question]) -> list[NDArray[np.int64]]:
        """The class of each box in each picture."""
        counts = [len(item.boxes) for item in items]
        if not sum(counts):
            return [np.zeros(0, dtype=np.int64) for _ in items]
        crops = np.concatenate([crop_objects(item.picture, item.boxes, self._side) for item in items])
        found = np.concatenate(
            [self._classify(crops[at : at + _BATCH]) for at in range(0, len(crops), _BATCH)]
        )
        return np.split(found, np.cumsum(counts)[:-1])

    def operations(self, items: Sequence[Question]) -> int:
        """Multiplications and additions for all crops."""
        if not self._operations_per_crop:
            with FlopCounterMode(display=False) as counter, torch.no_grad():
                self._network(torch.zeros(1, 3, self._side, self._side))
            self._operations_per_crop = int(counter.get_total_flops())
        return self._operations_per_crop * sum(len(item.boxes) for item in items)

    def detect(self, image: NDArray[np.uint8]) -> None:
        """None: a classifier knows no boxes."""

    def _classify(self, crops: NDArray[np.uint8]) -> NDArray[np.int64]:
        pictures = torch.from_numpy(np.ascontiguousarray(crops.transpose(0, 3, 1, 2))).float() / 255
        with torch.inference_mode():
            scores: Tensor = self._network(pictures)
        return scores.argmax(dim=1).numpy().astype(np.int64)


def open_resnext29(weights: Path, classes: tuple[str, ...]) -> GoldenClassifier:
    """The small golden model of the synthetic city."""
    return GoldenClassifier(classes, load_resnext29(weights, classes), _SMALL_SIDE)


def open_resnext101(weights: Path | None, classes: tuple[str, ...]) -> GoldenClassifier:
    """ResNeXt-101 with ImageNet weights, the paper's golden model.

    Args:
        weights: a local file, or None for torchvision's download.
        classes: the fleet's; each needs ImageNet categories in ``golden_models/imagenet_to_fleet.yaml``.

    Raises:
        UserError: the weights cannot be had or do not fit, or a class has no categories.
    """
    grouping = imagenet_grouping(classes, shipped_path(_IMAGENET_MAP))
    network = get_model(RESNEXT101, weights=None)
    load_weights(network, RESNEXT101, weights)
    mean, std = _normalisation()
    return GoldenClassifier(classes, _ByFleetClass(network, grouping, mean, std), _IMAGENET_SIDE)


def imagenet_grouping(classes: tuple[str, ...], file: Path) -> Tensor:
    """Which of ImageNet's categories count for which class of the fleet.

    Args:
        classes: the fleet's.
        file: class name to a list of category names, as YAML.

    Returns:
        (1000, classes) float, 1 where the category belongs to the class.

    Raises:
        UserError: a class without categories, or a category that torchvision does not list.
    """
    categories = [str(name) for name in get_model_weights(RESNEXT101).DEFAULT.meta["categories"]]
    try:
        mapping = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise UserError(f"{file}: cannot be read as YAML; restore it from the project.") from error
    grouping = torch.zeros(len(categories), len(classes))
    for column, name in enumerate(classes):
        members = mapping.get(name) if isinstance(mapping, dict) else None
        if not isinstance(members, list) or not members:
            raise UserError(
                f"{file}: key '{name}' lists no ImageNet categories, so {RESNEXT101} cannot label it; "
                "add some, leave the class out of the fleet, or use a golden detector."
            )
        for member in members:
            if member not in categories:
                raise UserError(
                    f"{file}: key '{name}' lists '{member}', no category of ImageNet; correct it."
                )
            grouping[categories.index(member), column] = 1.0
    return grouping


class _ByFleetClass(nn.Module):
    """Normalises, classifies, and sums ImageNet's probabilities per class of the fleet."""

    def __init__(self, network: nn.Module, grouping: Tensor, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("grouping", grouping)
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, crops: Tensor) -> Tensor:
        """(N, 3, H, W) RGB in [0, 1] to (N, classes) summed probabilities."""
        mean, std = self.get_buffer("mean"), self.get_buffer("std")
        logits: Tensor = self.network((crops - mean) / std)
        return torch.softmax(logits, dim=1) @ self.get_buffer("grouping")


def _normalisation() -> tuple[Tensor, Tensor]:
    """Mean and deviation that the weights were trained with, each (3, 1, 1)."""
    preset = get_model_weights(RESNEXT101).DEFAULT.transforms()
    mean, std = (torch.tensor(values).reshape(3, 1, 1) for values in (preset.mean, preset.std))
    return mean, std
