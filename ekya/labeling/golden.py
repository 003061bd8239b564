"""The golden model: expensive, accurate, and asked about a small sample only (paper §2.2, §5)."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, field_validator

from ekya.labeling.detections import Question
from ekya.labeling.detectors import (
    DETECTORS,
    FASTESTDET,
    GOLDEN_SCORE,
    PROPOSAL_SCORE,
    open_detector,
)
from ekya.labeling.golden_classifier import RESNEXT101, open_resnext29, open_resnext101
from ekya.labeling.golden_detector import GoldenDetector
from ekya.shipped import shipped_path

RESNEXT29 = "resnext29"
_RESNEXT29_WEIGHTS = "golden_models/synthetic_city_resnext29.safetensors"


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

    def detect(self, image: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.int64]] | None:
        """Boxes (N, 4) and classes (N,) of a picture, for reference labels; None from a classifier."""


class GoldenSpec(BaseModel):
    """What a fleet file says about its golden model.

    Attributes:
        model: one of ``GOLDEN_MODELS``.
        weights: a local file; None for the shipped weights or the model's own download. A file
            that ends in ``.onnx`` is FastestDet's.
        labels_per_window: at most so many objects a stream and window are labelled.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = RESNEXT29
    weights: Path | None = None
    labels_per_window: int = Field(default=96, ge=1)

    @field_validator("model")
    @classmethod
    def _known(cls, model: str) -> str:
        if model not in GOLDEN_MODELS:
            raise ValueError(f"no golden model is called '{model}'; use one of {', '.join(GOLDEN_MODELS)}")
        return model


def detector_of(spec: GoldenSpec) -> str | None:
    """Name of the detector behind a golden model, None where it is a classifier."""
    if spec.weights is not None and spec.weights.suffix.lower() == ".onnx":
        return FASTESTDET
    return spec.model if spec.model in DETECTORS else None


def open_golden(spec: GoldenSpec, classes: tuple[str, ...]) -> GoldenModel:
    """The golden model that a fleet file asks for.

    Args:
        spec: which.
        classes: the fleet's; for a detector the last is ``background``.

    Raises:
        UserError: the weights cannot be had or do not fit, or do not know one of the classes.
    """
    return GOLDEN_MODELS[detector_of(spec) or spec.model](spec.weights, classes)


def _resnext29(weights: Path | None, classes: tuple[str, ...]) -> GoldenModel:
    return open_resnext29(weights or shipped_path(_RESNEXT29_WEIGHTS), classes)


def _resnext101(weights: Path | None, classes: tuple[str, ...]) -> GoldenModel:
    return open_resnext101(weights, classes)


def _detector(name: str, weights: Path | None, classes: tuple[str, ...]) -> GoldenModel:
    return GoldenDetector(classes, open_detector(name, weights, PROPOSAL_SCORE), GOLDEN_SCORE)


GOLDEN_MODELS: Mapping[str, Callable[[Path | None, tuple[str, ...]], GoldenModel]] = {
    RESNEXT29: _resnext29,
    RESNEXT101: _resnext101,
    **{name: partial(_detector, name) for name in DETECTORS},
}
"""How to open each golden model: weights or None, and the fleet's classes."""
