"""Golden models of torchvision: the paper's ResNeXt-101 (paper §5), and detectors of COCO's classes."""

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torchvision.models import get_model, get_model_weights

from ekya.config.shipped import shipped_path
from ekya.core.errors import UserError
from ekya.models.catalogue import fetch_model, find_model
from ekya.models.edge.device_memory import free_cache, is_out_of_memory
from ekya.models.golden.class_map import CLASS_OF_CATEGORY, COCO_CATEGORIES, coco_names
from ekya.models.golden.classifier import ByFleetClass, GoldenClassifier, grouped
from ekya.models.golden.detections import Detections
from ekya.models.golden.on_device import place_network
from ekya.models.operations_counter import count_operations
from ekya.models.supervised.network import TrainableNetwork, load_start
from ekya.models.weights import differences, read_state
from ekya.models.weights_metadata import read_metadata


def load_weights(model: nn.Module, name: str, path: Path | None) -> None:
    """Load weights into a torchvision model.

    Args:
        model: as torchvision builds it under ``name``.
        name: torchvision's name of the model.
        path: a safetensors file, or one that ``torch.save`` wrote from a state dict; None to take those of
            the catalogue, from the cache or over the network.

    Raises:
        UserError: the file is missing, damaged or of another model, or the download fails.
    """
    state = read_state(path or _fetch(name))
    wrong = differences(state, model.state_dict(), counters=False)
    if wrong:
        raise UserError(
            f"{path}: does not fit {name}, named by the key 'weights' ({wrong[0]}, one of {len(wrong)} "
            f"differences); give a file made from {name}."
        )
    # Not strict, since counters of batches may be missing; all else was compared.
    model.load_state_dict(state, strict=False)


def _fetch(name: str) -> Path:
    published = find_model(name)
    assert published is not None, "each of torchvision's golden models is in the catalogue"
    return fetch_model(published)


_IMAGENET_SIDE = 224
_CHECKED, _GPU_BATCH = (2, 3, 320, 320), 16
_IMAGENET_MAP = "golden_models/imagenet_to_fleet.yaml"


def open_resnext101(
    name: str, weights: Path | None, classes: tuple[str, ...], class_map: Path | None, device: str = "cpu"
) -> GoldenClassifier:
    """Opens ResNeXt-101, the paper's golden model, with ImageNet weights or those of ``ekya golden train``.

    Args:
        name: of the model, torchvision's.
        weights: a local file, or None for torchvision's download.
        classes: the fleet's.
        class_map: file that maps the weights' classes to the fleet's; None for the shipped one of ImageNet's,
            or for the same names.
        device: torch's name.

    Raises:
        UserError: the weights cannot be loaded or do not fit, or a class has no categories.
    """
    preset = get_model_weights(name).DEFAULT
    categories = tuple(str(category) for category in preset.meta["categories"])
    own = None if weights is None else _own_classes(name, weights)
    if own is None:
        class_map = class_map or shipped_path(_IMAGENET_MAP)
    grouping = grouped(classes, own or categories, class_map, name)
    network = get_model(name, weights=None, num_classes=len(own or categories))
    load_weights(network, name, weights)
    placed, runs_on = place_network(network, device, (4, 3, _IMAGENET_SIDE, _IMAGENET_SIDE))
    normalised = _Normalised(placed, preset.transforms().mean, preset.transforms().std)
    return GoldenClassifier(classes, ByFleetClass(normalised, grouping), _IMAGENET_SIDE, runs_on)


def _own_classes(name: str, weights: Path) -> tuple[str, ...] | None:
    """Returns the classes of weights that Ekya trained; None of other weights."""
    metadata = read_metadata(weights)
    if metadata.get("architecture") != name:
        return None
    try:
        return tuple(map(str, json.loads(metadata["classes"])))
    except (KeyError, ValueError, TypeError) as error:
        raise UserError(f"{weights}: its 'classes' are damaged; train it again: ekya golden train") from error


def trainable_resnext101(name: str, classes: int, weights: Path | None) -> TrainableNetwork:
    """Returns ResNeXt-101 to be trained: from a file, from ImageNet weights in the cache, or from fresh ones.

    Raises:
        UserError: the weights do not fit.
    """
    began = "fresh weights" if weights is None else weights.name
    published = find_model(name)
    if weights is None and published is not None and published.is_cached:
        weights, began = fetch_model(published, offline=True), "ImageNet weights of torchvision"
    network = get_model(name, weights=None, num_classes=classes)
    if weights is not None:
        load_start(network, read_state(weights), "fc.", str(weights), name)
    norm = get_model_weights(name).DEFAULT.transforms()
    return TrainableNetwork(
        name, network, _IMAGENET_SIDE, began, fresh=weights is None, mean=norm.mean, scale=norm.std
    )


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


class TorchvisionDetector:
    """``ObjectDetector`` of torchvision, which resizes, normalises and suppresses itself.

    On a GPU it analyses images of one size in batches, and its backbone may compute in half precision; boxes,
    whose pixels float16 cannot tell apart, are always decoded in float32.
    """

    def __init__(self, name: str, weights: Path | None, min_score: float = 0.5, device: str = "cpu") -> None:
        """Build the model and load its weights.

        Args:
            name: one of ``DETECTORS``.
            weights: a local file, or None for torchvision's download.
            min_score: detections below are dropped.
            device: torch's name.

        Raises:
            UserError: the weights cannot be loaded or do not fit.
        """
        self.names = coco_names()
        """COCO's 80 classes."""
        self._min_score = min_score
        self._operations: dict[tuple[int, int], int] = {}
        self._model: nn.Module = get_model(
            name, weights=None, weights_backbone=None, num_classes=len(COCO_CATEGORIES)
        )
        load_weights(self._model, name, weights)
        self._model.eval().to(device)
        self._model.backbone, self.runs_on = place_network(self._model.backbone, device, _CHECKED)
        # One by one on a CPU, so that an answer does not depend on the others of its batch.
        self._most = 1 if device == "cpu" else _GPU_BATCH

    def detect_objects(self, image: NDArray[np.uint8]) -> Detections:
        """Returns the objects in an (H, W, 3) uint8 BGR image."""
        (found,) = self._detect([image])
        return found

    def detect_each(self, images: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        """Returns the objects of each image; images of one size pass together."""
        found: list[Detections] = []
        while len(found) < len(images):
            rest = images[len(found) : len(found) + self._most]
            # Images of several sizes would be padded, which changes answers.
            _, alike = next(groupby(rest, lambda image: image.shape))
            batch = list(alike)
            try:
                found += self._detect(batch)
            except Exception as error:
                if len(batch) == 1 or not is_out_of_memory(error):
                    raise
                self._most = len(batch) // 2
                free_cache()
        return found

    def _detect(self, images: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        # ``from_numpy`` refuses negative strides.
        rgb = [np.ascontiguousarray(image[:, :, ::-1].transpose(2, 0, 1)) for image in images]
        with torch.inference_mode():
            pixels = [torch.from_numpy(image).to(self.runs_on.device) for image in rgb]
            every = self._model([image.float() / 255 for image in pixels])
        return [self._read({name: of.cpu().numpy() for name, of in one.items()}) for one in every]

    def _read(self, found: Mapping[str, NDArray[Any]]) -> Detections:
        classes = CLASS_OF_CATEGORY[found["labels"]]
        scores = found["scores"].astype(np.float32)
        keep = (classes >= 0) & (scores >= self._min_score)
        order = np.flatnonzero(keep)[np.argsort(-scores[keep], kind="stable")]
        return Detections(found["boxes"].astype(np.float32), classes, scores).select_rows(order)

    def operations_per_frame(self, shape: tuple[int, ...]) -> int:
        """Returns the operations on noise, counted once per shape.

        A two-stage model does more if it finds more.
        """
        size = (int(shape[0]), int(shape[1]))
        if size not in self._operations:
            # Seeded, since the count may depend on what is found in the noise.
            noise = torch.rand((3, *size), generator=torch.Generator().manual_seed(0))
            with count_operations(self._model) as counted, torch.no_grad():
                self._model([noise.to(self.runs_on.device)])
            self._operations[size] = counted.forward
        return self._operations[size]
