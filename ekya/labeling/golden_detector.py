"""A golden model that detects: it confirms what was proposed, or calls it background."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ekya.core.boxes import iou_matrix
from ekya.errors import UserError
from ekya.labeling.detections import Detector

BACKGROUND = "background"
"""The fleet's last class where the golden model is a detector: nothing that counts."""

_SAME_OBJECT_IOU = 0.5


class GoldenDetector:
    """A ``GoldenModel`` from a detector."""

    def __init__(self, classes: tuple[str, ...], detector: Detector) -> None:
        """Relate the fleet's classes to the detector's.

        Args:
            classes: the fleet's, of which the last is ``background``.
            detector: any.

        Raises:
            UserError: the last class is another, or the detector does not know one of them.
        """
        if not classes or classes[-1] != BACKGROUND:
            raise UserError(f"key 'classes': with a golden detector the last must be '{BACKGROUND}'; add it.")
        unknown = [name for name in classes[:-1] if name not in detector.names]
        if unknown:
            raise UserError(
                f"key 'classes': the golden detector knows no '{unknown[0]}'; use some of "
                f"{', '.join(detector.names)}."
            )
        self._classes = classes
        self._detector = detector
        self._class_of = np.asarray(
            [classes.index(name) if name in classes else -1 for name in detector.names], dtype=np.int64
        )

    @property
    def classes(self) -> tuple[str, ...]:
        """The fleet's classes."""
        return self._classes

    def label(
        self, items: Sequence[tuple[NDArray[np.uint8], NDArray[np.float32]]]
    ) -> list[NDArray[np.int64]]:
        """The class of the detection that overlaps each box most, background below IoU 0.5."""
        return [self._label(image, boxes) for image, boxes in items]

    def operations(self, items: Sequence[tuple[NDArray[np.uint8], NDArray[np.float32]]]) -> int:
        """Multiplications and additions for all images that have boxes."""
        return sum(self._detector.operations_per_frame(image.shape) for image, boxes in items if len(boxes))

    def detect(self, image: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Boxes (N, 4) and classes (N,) of what is there, only of the fleet's classes."""
        found = self._detector.detect(image)
        classes = self._class_of[found.classes]
        return found.boxes[classes >= 0], classes[classes >= 0]

    def _label(self, image: NDArray[np.uint8], boxes: NDArray[np.float32]) -> NDArray[np.int64]:
        labels = np.full(len(boxes), len(self._classes) - 1, dtype=np.int64)
        if not len(boxes):
            return labels
        found, classes = self.detect(image)
        if len(found):
            overlap = iou_matrix(boxes, found)
            best = overlap.argmax(axis=1)
            confirmed = overlap.max(axis=1) >= _SAME_OBJECT_IOU
            labels[confirmed] = classes[best[confirmed]]
        return labels
