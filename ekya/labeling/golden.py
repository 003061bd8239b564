"""The golden model: expensive, accurate, and asked about a small sample only (paper §2.2, §5)."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from ekya.errors import UserError
from ekya.labeling.checksum import verified
from ekya.labeling.coco import coco_names
from ekya.labeling.detections import Detector, FramePlace, Question
from ekya.labeling.detectors import DETECTORS, GOLDEN_SCORE, ONNX, PROPOSAL_SCORE, open_detector
from ekya.labeling.golden_classifier import (
    RESNEXT101S,
    GoldenClassifier,
    open_resnext29,
    open_resnext101,
)
from ekya.labeling.golden_detector import GoldenDetector
from ekya.labeling.golden_file import GoldenFile
from ekya.labeling.label_file import read_labels
from ekya.shipped import shipped_path

RESNEXT29 = "resnext29"
FILE = "file"
"""Labels that were made before."""

_RESNEXT29_WEIGHTS = "golden_models/synthetic_city_resnext29.safetensors"
_IMAGENET_MAP = "golden_models/imagenet_to_fleet.yaml"
_COCO_MAP = "golden_models/coco_to_fleet.yaml"
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")


class GoldenModel(Protocol):
    """Labels objects, as the teacher of the edge models."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The fleet's classes, the index space of all labels."""

    @property
    def background(self) -> int | None:
        """The class of a box that holds no object, from a detector, which pays by the picture.

        None from a classifier: it takes every box for an object, and pays by the box.
        """

    def label(self, items: Sequence[Question]) -> list[NDArray[np.int64]]:
        """For each item (N,) int64, the class of each box, -1 where it had better not be used."""

    def operations(self, items: Sequence[Question]) -> int:
        """Multiplications and additions that labelling these items takes."""

    def detect(
        self, image: NDArray[np.uint8], place: FramePlace | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]] | None:
        """Boxes (N, 4) and classes (N,) of a picture, for reference labels; None from a classifier."""


class GoldenSpec(BaseModel):
    """What a fleet file says about its golden model.

    Attributes:
        model: one of ``GOLDEN_MODELS``.
        weights: a local file; None for the shipped weights or the model's own download. A file
            that ends in ``.onnx`` is a detector's, whatever the model is called. For ``file`` it is the
            file of labels.
        sha256: what the file of ``weights`` must be, in hexadecimal digits; None for what its card says.
        class_map: YAML, which of the golden model's classes count for which of the fleet's; None for
            the shipped maps.
        labels_per_window: at most so many objects a stream and window are labelled.
        gpu_s_per_window: GPU-seconds that labelling a stream's window may take; None for any.
        policy: which objects are labelled, a name in ``profiling/label_policy.py``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = RESNEXT29
    weights: Path | None = None
    sha256: str | None = None
    class_map: Path | None = None
    labels_per_window: int = Field(default=96, ge=1)
    gpu_s_per_window: float | None = Field(default=None, gt=0)
    policy: str = "uniform"

    @field_validator("model")
    @classmethod
    def _known(cls, model: str) -> str:
        if model not in GOLDEN_MODELS:
            raise ValueError(f"no golden model is called '{model}'; use one of {', '.join(GOLDEN_MODELS)}")
        return model

    @field_validator("sha256")
    @classmethod
    def _is_a_checksum(cls, sha256: str | None) -> str | None:
        if sha256 is not None and not _SHA256.fullmatch(sha256):
            raise ValueError(f"'{sha256[:16]}' is no SHA-256; write the 64 digits that sha256sum prints")
        return sha256

    @model_validator(mode="after")
    def _has_a_file_to_check(self) -> "GoldenSpec":
        if self.sha256 is not None and self.weights is None:
            raise ValueError("sha256 is what a file must be; name the file under weights, or remove it")
        return self


def detector_of(spec: GoldenSpec) -> str | None:
    """Name of the detector behind a golden model, None where it is a classifier."""
    if spec.model in DETECTORS:
        return spec.model
    return ONNX if spec.weights is not None and spec.weights.suffix.lower() == ".onnx" else None


def open_detector_of(spec: GoldenSpec, min_score: float) -> Detector:
    """The network of a golden detector, as ``detector_of`` names it.

    Raises:
        UserError: the golden model is no detector, or its weights cannot be had or are not what they
            should be.
    """
    name = detector_of(spec)
    if name is None:
        raise UserError(f"key 'golden.model': {spec.model} finds no objects; use a detector, such as {ONNX}.")
    return open_detector(name, _weights(spec), min_score)


def open_classifier_of(spec: GoldenSpec, classes: tuple[str, ...]) -> GoldenClassifier:
    """A golden model that names boxes and says how sure it is.

    Raises:
        UserError: as ``open_golden``, or the golden model is no classifier.
    """
    golden = open_golden(spec, classes)
    if not isinstance(golden, GoldenClassifier):
        raise UserError(f"key 'golden.model': {spec.model} names no boxes; use {RESNEXT29} or another.")
    return golden


def label_file_of(spec: GoldenSpec) -> Path:
    """The file of labels that a golden model ``file`` reads, after it was compared with its checksum.

    Raises:
        UserError: none is named.
    """
    path = _weights(spec)
    if path is None:
        raise UserError(
            "key 'golden.weights': the golden model 'file' needs a file of labels; make one with "
            "`ekya golden label` and name it."
        )
    return path


def open_golden(spec: GoldenSpec, classes: tuple[str, ...]) -> GoldenModel:
    """The golden model that a fleet file asks for.

    Args:
        spec: which.
        classes: the fleet's; for a detector the last is ``background``.

    Raises:
        UserError: the weights cannot be had, are not what they should be or do not fit, or the model does
            not know one of the classes.
    """
    return GOLDEN_MODELS[detector_of(spec) or spec.model](spec, classes)


def _weights(spec: GoldenSpec) -> Path | None:
    """The local file that is named, after it was compared with its checksum."""
    return None if spec.weights is None else verified(spec.weights, spec.sha256)


def _resnext29(spec: GoldenSpec, classes: tuple[str, ...]) -> GoldenClassifier:
    weights = _weights(spec) or verified(shipped_path(_RESNEXT29_WEIGHTS))
    return open_resnext29(weights, classes, spec.class_map)


def _resnext101(name: str, spec: GoldenSpec, classes: tuple[str, ...]) -> GoldenClassifier:
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
    **dict.fromkeys(DETECTORS, _detector),
    FILE: _file,
}
"""How to open each golden model: what the fleet file says of it, and the fleet's classes."""
