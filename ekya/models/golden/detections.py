"""Detections in an image, requests to golden models, and the interface of detectors."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ekya.core.units import StreamId


@dataclass(frozen=True, slots=True, eq=False)
class Detections:
    """Objects found in one image, the most confident first.

    Attributes:
        boxes: (N, 4) float32, x0 y0 x1 y1 in pixels, inside the image.
        classes: (N,) int64, index into the detector's ``names``.
        scores: (N,) float32 in [0, 1].
    """

    boxes: NDArray[np.float32]
    classes: NDArray[np.int64]
    scores: NDArray[np.float32]

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> "Detections":
        """Returns these rows only."""
        return Detections(self.boxes[rows], self.classes[rows], self.scores[rows])


def no_detections() -> Detections:
    """Returns the detections in an empty image."""
    return Detections(np.zeros((0, 4), np.float32), np.zeros(0, np.int64), np.zeros(0, np.float32))


@dataclass(frozen=True, slots=True, eq=False)
class GoldenObjects:
    """Objects of one image as a golden detector labels them.

    Attributes:
        boxes: (N, 4) float32, x0 y0 x1 y1 in pixels.
        classes: (N,) int64, index into the fleet's classes.
        doubtful: (K, 4) float32, boxes in which the detector half believes: neither object nor background.
    """

    boxes: NDArray[np.float32]
    classes: NDArray[np.int64]
    doubtful: NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Proposals:
    """Boxes of the objects of one image, not yet classified.

    Attributes:
        boxes: (N, 4) float32, x0 y0 x1 y1 in pixels.
        found: detections of the detector that proposed them, less confident ones too; None if the boxes have
            another source. Not for classifiers; a golden model with the same network need not run again.
        count_operations: returns the multiplications and additions of finding them. Counting may take longer
            than finding.
    """

    boxes: NDArray[np.float32]
    found: Detections | None = None
    count_operations: Callable[[], int] = lambda: 0


@dataclass(frozen=True, slots=True)
class FramePlace:
    """Position of a frame: its stream, and its index in the stream."""

    stream: StreamId
    frame: int


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """Boxes of one image that a golden model is to classify.

    Attributes:
        boxes: (N, 4) float32, x0 y0 x1 y1 in pixels.
        image: (H, W, 3) uint8 BGR; None if its detections are available and nothing else needs it.
        found: detections of the golden model's network in the image, if it has been run.
        place: of the frame; only needed to look up labels in a file.
        size: width and height of the frame in pixels, if ``image`` is a smaller copy of it; what is found is
            in pixels of the frame.
    """

    boxes: NDArray[np.float32]
    image: NDArray[np.uint8] | None
    found: Detections | None = None
    place: FramePlace | None = None
    size: tuple[int, int] | None = None

    @property
    def picture(self) -> NDArray[np.uint8]:
        """The image.

        Raises:
            ValueError: the image was not kept.
        """
        if self.image is None:
            raise ValueError("only what was detected in this picture is known, and not the picture itself")
        return self.image


class Detector(Protocol):
    """Interface of detectors, which find and classify objects."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its classes; the index space of ``Detections.classes``."""

    def detect(self, image: NDArray[np.uint8]) -> Detections:
        """Returns the objects in an (H, W, 3) uint8 BGR image."""

    def operations_per_frame(self, shape: tuple[int, ...]) -> int:
        """Returns the multiplications and additions for one image of this (H, W, ...) shape."""
