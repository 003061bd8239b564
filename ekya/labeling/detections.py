"""What a detector says about a picture."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Detections:
    """Objects found in one picture, the surest first.

    Attributes:
        boxes: (N, 4) float32, x0 y0 x1 y1 in pixels, inside the picture.
        classes: (N,) int64, index into the detector's ``names``.
        scores: (N,) float32 in [0, 1].
    """

    boxes: NDArray[np.float32]
    classes: NDArray[np.int64]
    scores: NDArray[np.float32]

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> "Detections":
        """Only these rows."""
        return Detections(self.boxes[rows], self.classes[rows], self.scores[rows])


class Detector(Protocol):
    """Finds objects and says what they are."""

    @property
    def names(self) -> tuple[str, ...]:
        """What it can find; the index space of ``Detections.classes``."""

    def detect(self, image: NDArray[np.uint8]) -> Detections:
        """Objects in an (H, W, 3) uint8 BGR picture."""

    def operations_per_frame(self, shape: tuple[int, ...]) -> int:
        """Multiplications and additions for one picture of this (H, W, ...) shape."""
