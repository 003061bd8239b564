"""Golden model from a detector: confirms proposed boxes or labels them as background."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ekya.core.errors import UserError
from ekya.core.objects import BACKGROUND, iou_matrix
from ekya.models.golden.class_map import class_of_each
from ekya.models.golden.detections import Detections, Detector, FramePlace, Question

UNSURE = -1
"""Label of a box with an unsure detection only: it is not used for training."""

_SAME_OBJECT_IOU = 0.5


class GoldenDetector:
    """``GoldenModel`` from a detector."""

    def __init__(
        self, classes: tuple[str, ...], detector: Detector, sure_score: float, class_map: Path | None = None
    ) -> None:
        """Map the detector's classes to the fleet's.

        Args:
            classes: the fleet's; the last is ``background``.
            detector: any; with a lower minimum score, unsure boxes can be distinguished from background.
            sure_score: minimum score of a sure detection.
            class_map: file that maps the detector's classes to the fleet's, if their names differ.

        Raises:
            UserError: the last class is another, or the detector and the map do not know one of them.
        """
        if not classes or classes[-1] != BACKGROUND:
            raise UserError(f"key 'classes': with a golden detector the last must be '{BACKGROUND}'; add it.")
        self._classes = classes
        self._detector = detector
        self._sure_score = sure_score
        self._class_of = class_of_each(classes[:-1], detector.names, class_map, "the golden detector")

    @property
    def classes(self) -> tuple[str, ...]:
        """The fleet's classes."""
        return self._classes

    @property
    def background(self) -> int:
        """Index of ``background``."""
        return len(self._classes) - 1

    def label(self, items: Sequence[Question]) -> list[NDArray[np.int64]]:
        """Returns the class of the sure detection that overlaps each box most, at IoU 0.5 or more.

        Other boxes are ``UNSURE`` if an unsure detection of one of the fleet's classes overlaps them as much,
        else background.
        """
        return [self._label(item) for item in items]

    def operations(self, items: Sequence[Question]) -> int:
        """Returns the multiplications and additions for all images with boxes and without detections."""
        asked = [item.picture for item in items if len(item.boxes) and item.found is None]
        return sum(self._detector.operations_per_frame(image.shape) for image in asked)

    def detect(
        self, image: NDArray[np.uint8], place: FramePlace | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Returns boxes (N, 4) and classes (N,) of sure detections of the fleet's classes."""
        found, classes, sure = self._ours(self._detector.detect(image))
        return found.boxes[sure], classes[sure]

    def _ours(self, found: Detections) -> tuple[Detections, NDArray[np.int64], NDArray[np.bool_]]:
        """Returns the detections of the fleet's classes, those classes, and which are sure."""
        ours = np.flatnonzero(self._class_of[found.classes] >= 0)
        found = found.take(ours)
        return found, self._class_of[found.classes], found.scores >= self._sure_score

    def _label(self, item: Question) -> NDArray[np.int64]:
        if not len(item.boxes):
            return np.zeros(0, dtype=np.int64)
        seen = self._detector.detect(item.picture) if item.found is None else item.found
        found, classes, sure = self._ours(seen)
        return confirmed(item.boxes, found, classes, sure, self.background)


def confirmed(
    boxes: NDArray[np.float32],
    found: Detections,
    classes: NDArray[np.int64],
    sure: NDArray[np.bool_],
    otherwise: int,
) -> NDArray[np.int64]:
    """Labels given boxes from detections.

    Args:
        boxes: (N, 4).
        found: M detections.
        classes: (M,) the fleet's class of each.
        sure: (M,) True if the detection is sure.
        otherwise: label of a box without any detection.

    Returns:
        (N,) the class of the sure detection that overlaps most, at IoU 0.5 or more; ``UNSURE`` if only others
        do.
    """
    labels = np.full(len(boxes), otherwise, dtype=np.int64)
    overlap = iou_matrix(boxes, found.boxes)
    labels[np.any(overlap >= _SAME_OBJECT_IOU, axis=1)] = UNSURE
    if len(boxes) and np.any(sure):
        best = overlap[:, sure].argmax(axis=1)
        there = overlap[:, sure].max(axis=1) >= _SAME_OBJECT_IOU
        labels[there] = classes[sure][best[there]]
    return labels
