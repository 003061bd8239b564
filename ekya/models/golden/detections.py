"""Detections in an image and their suppression, requests to golden models, and the interface of detectors.

Boxes are x0 y0 x1 y1 in pixels, as in ``ekya.core.objects``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ekya.core.areas import Areas
from ekya.core.objects import iou_matrix
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

    def select_rows(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> "Detections":
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
        doubtful: (K, 4) float32, boxes in which the detector half believes, and those that do not count:
            neither object nor background.
    """

    boxes: NDArray[np.float32]
    classes: NDArray[np.int64]
    doubtful: NDArray[np.float32]

    def in_areas(self, areas: Areas, size: tuple[int, int]) -> "GoldenObjects":
        """Returns the objects of a picture of this width and height in which they count there only."""
        counts = areas.find_counting(self.boxes, size)
        doubtful = np.concatenate([self.doubtful, self.boxes[~counts]])
        return GoldenObjects(self.boxes[counts], self.classes[counts], doubtful)


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


@dataclass(frozen=True, slots=True)
class RunsOn:
    """Where an opened golden model computes.

    Attributes:
        device: torch's name of the device, which need not be the one that was asked for.
        how: its precision or its engine's provider, if it is not what a CPU has; for display.
    """

    device: str = "cpu"
    how: str = ""

    def __str__(self) -> str:
        """Returns both; a process that sees one GPU calls it ``cuda``."""
        device = f"{self.device}:0" if self.device == "cuda" else self.device
        return f"{device} ({self.how})" if self.how else device


ON_CPU = RunsOn()


class ObjectDetector(Protocol):
    """Interface of detectors, which find and classify objects."""

    @property
    def runs_on(self) -> RunsOn:
        """Where it runs."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its classes; the index space of ``Detections.classes``."""

    def detect_objects(self, image: NDArray[np.uint8]) -> Detections:
        """Returns the objects in an (H, W, 3) uint8 BGR image."""

    def detect_each(self, images: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        """Returns the objects of each image, which a GPU analyses in batches."""

    def operations_per_frame(self, shape: tuple[int, ...]) -> int:
        """Returns the multiplications and additions for one image of this (H, W, ...) shape."""


MOST_BOXES = 300
"""Upper bound of detections in one image."""
_MOST_CANDIDATES = 1000  # Suppression compares all pairs: 50 ms. In crowds an object has ten boxes.


def nms(
    boxes: NDArray[np.float32],
    scores: NDArray[np.float32],
    classes: NDArray[np.int64] | None,
    max_iou: float,
) -> NDArray[np.int64]:
    """Keeps only the best of boxes that overlap by more than ``max_iou`` (non-maximum suppression).

    Args:
        boxes: (N, 4).
        scores: (N,); of equal scores the first is better.
        classes: (N,), if only boxes of one class compete; None if all do.
        max_iou: the largest allowed overlap.

    Returns:
        (M,) rows that are kept, best first.
    """
    order = np.argsort(-scores, kind="stable")
    rivals = iou_matrix(boxes, boxes) > max_iou
    if classes is not None:
        rivals &= classes[:, None] == classes[None, :]
    gone = np.zeros(len(boxes), dtype=np.bool_)
    kept = []
    for row in order.tolist():
        if not gone[row]:
            kept.append(row)
            gone |= rivals[row]
    return np.asarray(kept, dtype=np.int64)


def suppressed(
    found: Detections, width: int, height: int, class_count: int, min_score: float, max_iou: float
) -> Detections:
    """Returns the sound and distinct ones of a network's answers, best first, ``MOST_BOXES`` at most.

    Left out are detections with a value that is not finite, with a class that does not exist, or without area
    inside the image; of several with exactly the same box, all but the best, since a box shows one object and
    an object has one class; and of a class, those that overlap a better one.

    Args:
        found: answers in pixels of the image, in any order; all values are possible.
        width, height: of the image, pixels.
        class_count: number of classes.
        min_score: detections below are dropped.
        max_iou: the largest allowed overlap of two boxes of one class.
    """
    usable = np.isfinite(found.scores) & (found.scores >= min_score) & np.isfinite(found.boxes).all(axis=1)
    rows = np.flatnonzero(usable & (found.classes >= 0) & (found.classes < class_count))
    best = found.select_rows(rows[np.argsort(-found.scores[rows], kind="stable")[:_MOST_CANDIDATES]])
    # Before boxes are clipped, which makes different ones equal.
    _, first = np.unique(best.boxes, axis=0, return_index=True)
    # ``unique`` gives the first, and so the best, of equal boxes, but in the order of coordinates.
    one_each = best.select_rows(np.sort(first))
    boxes = np.clip(one_each.boxes, 0.0, [width, height, width, height]).astype(np.float32)
    sound = Detections(boxes, one_each.classes, np.clip(one_each.scores, 0.0, 1.0).astype(np.float32))
    sound = sound.select_rows((boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1]))
    return sound.select_rows(nms(sound.boxes, sound.scores, sound.classes, max_iou)[:MOST_BOXES])
