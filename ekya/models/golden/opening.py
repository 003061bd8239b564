"""Opens golden models: expensive, accurate models that label a small sample only (paper §2.2, §5)."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from ekya.config.shipped import shipped_path
from ekya.core.errors import UserError
from ekya.models.golden.checksum import verified
from ekya.models.golden.coco import coco_names
from ekya.models.golden.confirming import GoldenDetector
from ekya.models.golden.detections import Detector, FramePlace, Question
from ekya.models.golden.detectors import GOLDEN_SCORE, PROPOSAL_SCORE, open_detector
from ekya.models.golden.from_file import GoldenFile
from ekya.models.golden.label_file import read_labels
from ekya.models.golden.spec import (
    DETECTOR_NAMES,
    FILE,
    ONNX,
    RESNEXT29,
    RESNEXT101S,
    GoldenSpec,
    detector_of,
)

if TYPE_CHECKING:
    from ekya.models.golden.classifier import GoldenClassifier

_RESNEXT29_WEIGHTS = "golden_models/synthetic_city_resnext29.safetensors"
_IMAGENET_MAP = "golden_models/imagenet_to_fleet.yaml"
_COCO_MAP = "golden_models/coco_to_fleet.yaml"


class GoldenModel(Protocol):
    """Interface of golden models, which label objects as teachers of the edge models."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The fleet's classes, the index space of all labels."""

    @property
    def background(self) -> int | None:
        """Class of a box without an object, from a detector, whose cost is per image.

        None from a classifier, which takes every box for an object, and whose cost is per box.
        """

    def label(self, items: Sequence[Question]) -> list[NDArray[np.int64]]:
        """Returns for each item (N,) int64, the class of each box, -1 if the box should not be used."""

    def operations(self, items: Sequence[Question]) -> int:
        """Returns the multiplications and additions of labelling these items."""

    def detect(
        self, image: NDArray[np.uint8], place: FramePlace | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]] | None:
        """Returns boxes (N, 4) and classes (N,) of an image as a reference; None from a classifier."""


def open_detector_of(spec: GoldenSpec, min_score: float) -> Detector:
    """Opens the network of a golden detector, as ``detector_of`` names it.

    Raises:
        UserError: the golden model is no detector, or its weights cannot be loaded or have another checksum.
    """
    name = detector_of(spec)
    if name is None:
        raise UserError(f"key 'golden.model': {spec.model} finds no objects; use a detector, such as {ONNX}.")
    return open_detector(name, _weights(spec), min_score)


def open_classifier_of(spec: GoldenSpec, classes: tuple[str, ...]) -> "GoldenClassifier":
    """Opens a golden model that classifies boxes with a confidence.

    Raises:
        UserError: as ``open_golden``, or the golden model is no classifier.
    """
    from ekya.models.golden.classifier import GoldenClassifier

    golden = open_golden(spec, classes)
    if not isinstance(golden, GoldenClassifier):
        raise UserError(f"key 'golden.model': {spec.model} names no boxes; use {RESNEXT29} or another.")
    return golden


def label_file_of(spec: GoldenSpec) -> Path:
    """Returns the label file of a golden model ``file``, after verifying its checksum.

    Raises:
        UserError: no file is named, or it has another checksum.
    """
    path = _weights(spec)
    if path is None:
        raise UserError(
            "key 'golden.weights': the golden model 'file' needs a file of labels; make one with "
            "`ekya golden label` and name it."
        )
    return path


def open_golden(spec: GoldenSpec, classes: tuple[str, ...]) -> GoldenModel:
    """Opens the golden model that a fleet file names.

    Args:
        spec: golden model of the fleet file.
        classes: the fleet's; for a detector the last is ``background``.

    Raises:
        UserError: the weights cannot be loaded, have another checksum or do not fit, or the model does not
            know one of the classes.
    """
    return GOLDEN_MODELS[detector_of(spec) or spec.model](spec, classes)


def _weights(spec: GoldenSpec) -> Path | None:
    """Returns the named local file, if any, after verifying its checksum."""
    return None if spec.weights is None else verified(spec.weights, spec.sha256)


def _resnext29(spec: GoldenSpec, classes: tuple[str, ...]) -> "GoldenClassifier":
    from ekya.models.golden.classifier import open_resnext29

    weights = _weights(spec) or verified(shipped_path(_RESNEXT29_WEIGHTS))
    return open_resnext29(weights, classes, spec.class_map)


def _resnext101(name: str, spec: GoldenSpec, classes: tuple[str, ...]) -> "GoldenClassifier":
    # Imported for this model only: it imports torchvision, which takes as long as torch.
    from ekya.models.golden.torchvision_models import open_resnext101

    return open_resnext101(name, _weights(spec), classes, spec.class_map or shipped_path(_IMAGENET_MAP))


def _detector(spec: GoldenSpec, classes: tuple[str, ...]) -> GoldenDetector:
    detector = open_detector_of(spec, PROPOSAL_SCORE)
    shipped = shipped_path(_COCO_MAP) if detector.names == coco_names() else None
    return GoldenDetector(classes, detector, GOLDEN_SCORE, spec.class_map or shipped)


def _file(spec: GoldenSpec, classes: tuple[str, ...]) -> GoldenFile:
    labels = read_labels(label_file_of(spec))
    shipped = shipped_path(_COCO_MAP) if labels.head.names == coco_names() else None
    return GoldenFile(classes, labels, GOLDEN_SCORE, spec.class_map or shipped)


GOLDEN_MODELS: Mapping[str, Callable[[GoldenSpec, tuple[str, ...]], GoldenModel]] = {
    RESNEXT29: _resnext29,
    **{name: partial(_resnext101, name) for name in RESNEXT101S},
    **dict.fromkeys(DETECTOR_NAMES, _detector),
    FILE: _file,
}
"""Functions that open each golden model, from its entry in the fleet file and the fleet's classes."""
