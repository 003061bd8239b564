"""What a detector says about a picture."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ekya.core.ids import StreamId


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


@dataclass(frozen=True, slots=True, eq=False)
class Proposals:
    """The objects of one picture, not yet named.

    Attributes:
        boxes: (N, 4) float32, x0 y0 x1 y1 in pixels.
        found: what a detector saw when it proposed them, less sure detections too; None where the boxes
            came otherwise. Nobody who classifies looks at it; a golden model with the same network need
            not look at the picture again.
        count_operations: multiplications and additions that it took to find them. Counting may take longer
            than finding.
    """

    boxes: NDArray[np.float32]
    found: Detections | None = None
    count_operations: Callable[[], int] = lambda: 0


@dataclass(frozen=True, slots=True)
class FramePlace:
    """Which frame it is: a stream's, and its index in it."""

    stream: StreamId
    frame: int


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """Objects of one picture that a golden model is to name.

    Attributes:
        boxes: (N, 4) float32, x0 y0 x1 y1 in pixels.
        image: (H, W, 3) uint8 BGR; None where its detections are there and nobody needs it.
        found: what the golden model's own network saw in the picture, if it has been run.
        place: which frame it is; only labels that were made before are found by it.
    """

    boxes: NDArray[np.float32]
    image: NDArray[np.uint8] | None
    found: Detections | None = None
    place: FramePlace | None = None

    @property
    def picture(self) -> NDArray[np.uint8]:
        """The picture.

        Raises:
            ValueError: it was not kept.
        """
        if self.image is None:
            raise ValueError("only what was detected in this picture is known, and not the picture itself")
        return self.image


class Detector(Protocol):
    """Finds objects and says what they are."""

    @property
    def names(self) -> tuple[str, ...]:
        """What it can find; the index space of ``Detections.classes``."""

    def detect(self, image: NDArray[np.uint8]) -> Detections:
        """Objects in an (H, W, 3) uint8 BGR picture."""

    def operations_per_frame(self, shape: tuple[int, ...]) -> int:
        """Multiplications and additions for one picture of this (H, W, ...) shape."""
