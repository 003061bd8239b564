"""Golden models: expensive, accurate models that label a small sample only (paper §2.2, §5)."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ekya.config.shipped import shipped_path
from ekya.core.errors import UserError
from ekya.models.edge.architecture_table import Task
from ekya.models.golden.checksum import verified
from ekya.models.golden.class_map import COCO_MAP, class_of_each, coco_names
from ekya.models.golden.detections import FramePlace, GoldenObjects, ObjectDetector, Question, RunsOn
from ekya.models.golden.golden_from_detections import detector_model, label_file_model
from ekya.models.golden.label_file import read_labels
from ekya.models.golden.spec import (
    CLASSIFIERS,
    DETECTORS,
    FILE,
    ONNX,
    RESNEXT29,
    GoldenSpec,
    detector_of,
    imported,
    is_of_torchvision,
)

if TYPE_CHECKING:
    from ekya.models.golden.classifier import GoldenClassifier

GOLDEN_SCORE = 0.6
"""Minimum score of a detection that names a proposed box."""

PROPOSAL_SCORE = 0.4
"""Minimum score of a detection whose box is proposed to the edge model."""

OBJECT_SCORE = 0.4
"""Minimum score of a detection that is an object for an edge model that detects."""

DOUBTFUL_SCORE = 0.2
"""Minimum score of a detection that is doubtful for it: neither object nor background."""


class Labels(Protocol):
    """The part of a golden model that labelling needs."""

    @property
    def background(self) -> int | None:
        """Class of a box without an object, from a detector; None if every box is taken for an object."""

    @property
    def finds(self) -> bool:
        """True if it finds the objects of an image itself; then its cost is per image, else per box."""

    @property
    def runs_on(self) -> RunsOn:
        """Where it computes."""

    def label_boxes(self, items: Sequence[Question]) -> list[NDArray[np.int64]]:
        """Returns for each item (N,) int64, the class of each box, -1 if the box should not be used."""

    def find_each(self, items: Sequence[Question]) -> Sequence[GoldenObjects | None]:
        """Returns the objects of each frame, in its pixels; boxes of the items do not matter.

        None from a classifier, or for a frame never seen.
        """

    def operations(self, items: Sequence[Question]) -> int:
        """Returns the multiplications and additions of labelling these items."""


def calls_for(golden: Labels, items: Sequence[Question]) -> int:
    """Returns the number of pictures that a golden model analyses for some items.

    Those with detections need no analysis, nor those without boxes if it only tells objects from background.
    """
    return sum(item.found is None and (golden.background is None or len(item.boxes) > 0) for item in items)


class GoldenModel(Labels, Protocol):
    """Interface of golden models, which label objects as teachers of the edge models."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The fleet's classes, the index space of all labels."""

    def find_objects(
        self,
        image: NDArray[np.uint8],
        place: FramePlace | None = None,
        size: tuple[int, int] | None = None,
    ) -> GoldenObjects | None:
        """Returns what ``find_each`` does of one frame.

        Args:
            image: (H, W, 3) uint8 BGR, the frame or a smaller copy.
            place: of the frame; only needed to look up labels in a file.
            size: width and height of the frame in pixels; None if it is as large as ``image``.
        """


def open_golden(
    spec: GoldenSpec, classes: tuple[str, ...], task: Task = Task.CLASSIFY, device: str = "cpu"
) -> GoldenModel:
    """Opens the golden model that a fleet file names.

    Args:
        spec: golden model of the fleet file.
        classes: the fleet's; for a detector that names boxes one is ``background``.
        task: of the edge models that learn from it.
        device: torch's name of the process's device; ``runs_on`` of the model says where it is then.

    Raises:
        UserError: the weights cannot be loaded, have another checksum or do not fit, or the model does not
            know one of the classes, or finds no objects where edge models learn to.
    """
    names_boxes = task is Task.CLASSIFY
    least, sure = (PROPOSAL_SCORE, GOLDEN_SCORE) if names_boxes else (DOUBTFUL_SCORE, OBJECT_SCORE)
    if spec.model == FILE:
        labels = read_labels(label_file_of(spec))
        class_map = _class_map(spec, labels.head.names)
        return label_file_model(classes, labels, sure, class_map, names_boxes)
    if detector_of(spec) is None and names_boxes:
        return open_classifier_of(spec, classes, device)
    detector = open_detector_of(spec, least, device)
    return detector_model(classes, detector, sure, _class_map(spec, detector.names), names_boxes)


def open_detector_of(spec: GoldenSpec, min_score: float, device: str = "cpu") -> ObjectDetector:
    """Opens the network of a golden detector, as ``detector_of`` names it, on a torch device.

    Raises:
        UserError: the golden model is no detector, or its weights cannot be loaded or have another checksum.
    """
    name = detector_of(spec)
    if name is None:
        raise UserError(f"key 'golden.model': {spec.model} finds no objects; use a detector, such as {ONNX}.")
    return open_detector(name, _weights(spec), min_score, spec.layout, device)


def learn_layout(spec: GoldenSpec, images: Iterable[NDArray[np.uint8]]) -> str | None:
    """Returns the ``golden.layout`` of an ONNX detector that finds something in (H, W, 3) uint8 BGR frames.

    Of other golden models, and of one that finds nothing, it is that of the specification.

    Raises:
        UserError: as ``open_detector_of``, or the layout is ambiguous.
    """
    if DETECTORS.get(detector_of(spec) or "") != DETECTORS[ONNX]:
        return spec.layout
    detector: Any = open_detector_of(spec, GOLDEN_SCORE)
    for image in images:
        detector.detect_objects(image)
    layout: str | None = detector.say_layout() or spec.layout
    return layout


def open_detector(
    name: str,
    weights: Path | None,
    min_score: float = GOLDEN_SCORE,
    layout: str | None = None,
    device: str = "cpu",
) -> ObjectDetector:
    """Opens a detector by name on a torch device; ``layout`` is the ``golden.layout`` of an ONNX file.

    Raises:
        UserError: no such name, or the weights cannot be loaded or do not fit.
    """
    if name not in DETECTORS:
        raise UserError(f"key 'model': no detector is called '{name}'; use one of {', '.join(DETECTORS)}.")
    said = () if layout is None else (layout,)
    detector: ObjectDetector = imported(DETECTORS[name])(name, weights, min_score, *said, device=device)
    return detector


def open_classifier_of(spec: GoldenSpec, classes: tuple[str, ...], device: str = "cpu") -> "GoldenClassifier":
    """Opens a golden model that classifies boxes with a confidence, on a torch device.

    Raises:
        UserError: as ``open_golden``, or the golden model is no classifier.
    """
    if spec.model not in CLASSIFIERS:
        raise UserError(f"key 'golden.model': {spec.model} names no boxes; use {RESNEXT29} or another.")
    opener = imported(CLASSIFIERS[spec.model].opener)
    classifier: GoldenClassifier = opener(spec.model, _weights(spec), classes, spec.class_map, device)
    return classifier


def require_known_classes(spec: GoldenSpec, classes: tuple[str, ...]) -> None:
    """Refuses classes that a golden detector does not know, and its file if it is none, in a moment.

    Raises:
        UserError: it does not know one of them, or its file, its layout or its class map has a mistake.
    """
    name = detector_of(spec)
    if name is not None:
        names = coco_names() if is_of_torchvision(name) else open_detector_of(spec, GOLDEN_SCORE).names
        class_of_each(classes, names, _class_map(spec, names), "the golden detector")


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


def _class_map(spec: GoldenSpec, names: tuple[str, ...]) -> Path | None:
    """Returns the named class map; by default the shipped one for a model of COCO's classes."""
    return spec.class_map or (shipped_path(COCO_MAP) if names == coco_names() else None)


def _weights(spec: GoldenSpec) -> Path | None:
    """Returns the named local file, if any, after verifying its checksum."""
    return None if spec.weights is None else verified(spec.weights, spec.sha256)
