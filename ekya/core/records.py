"""Rows of a run's Parquet files: its records of every frame.

During the run each row is a dataclass. For scoring, whole streams are held as columns: the objects of all
frames are in one array, and ``offsets[i]:offsets[i + 1]`` are those of row i.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

NOT_ANSWERED = -1
"""``answered_by`` of a frame that arrived before the first analysed one."""


@dataclass(frozen=True, slots=True, eq=False)
class FramePrediction:
    """Result of inference for one frame that arrived.

    Attributes:
        frame: index in the stream.
        t_us: stream time.
        window: the window in which it arrived.
        analysed: whether the model analysed this frame.
        answered_by: index of the frame whose boxes and classes are used for this one, never a later one;
            ``NOT_ANSWERED`` if there is none yet. It is the frame itself where it was analysed, and where
            optical flow followed the boxes of an analysed frame into it; otherwise its boxes are empty.
        model_version: the model that served then.
        every, resolution: λ.
        boxes: (N, 4) float32, x0 y0 x1 y1 in pixels.
        classes: (N,) int16, index into the fleet's classes.
        confidence: (N,) float32 in [0, 1].
    """

    frame: int
    t_us: int
    window: int
    analysed: bool
    answered_by: int
    model_version: int
    every: int
    resolution: int
    boxes: NDArray[np.float32]
    classes: NDArray[np.int16]
    confidence: NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class FrameReference:
    """Ground truth of one frame, or the golden detector's result for it.

    Attributes:
        frame: index in the stream.
        t_us: stream time.
        boxes: (N, 4) float32, x0 y0 x1 y1 in pixels.
        classes: (N,) int16, index into the fleet's classes; ``DOUBTFUL`` for a box that is not certain to
            be an object.
        tracks: (N,) int64, one number per object for its lifetime, never reused.
    """

    frame: int
    t_us: int
    boxes: NDArray[np.float32]
    classes: NDArray[np.int16]
    tracks: NDArray[np.int64]


_OF_FRAMES = ("frame", "t_us", "window", "analysed", "answered_by", "model_version", "every", "resolution")


@dataclass(frozen=True, slots=True, eq=False)
class PredictionColumns:
    """All predictions of a stream: F rows with rising ``frame``, M objects in total.

    Attributes:
        frame, t_us, answered_by: (F,) int64.
        window, model_version: (F,) int32.
        every, resolution: (F,) int16.
        analysed: (F,) bool.
        offsets: (F + 1,) int64.
        boxes: (M, 4) float32.
        classes: (M,) int16.
        confidence: (M,) float32.
    """

    frame: NDArray[np.int64]
    t_us: NDArray[np.int64]
    window: NDArray[np.int32]
    analysed: NDArray[np.bool_]
    answered_by: NDArray[np.int64]
    model_version: NDArray[np.int32]
    every: NDArray[np.int16]
    resolution: NDArray[np.int16]
    offsets: NDArray[np.int64]
    boxes: NDArray[np.float32]
    classes: NDArray[np.int16]
    confidence: NDArray[np.float32]

    @staticmethod
    def from_rows(rows: Sequence[FramePrediction]) -> "PredictionColumns":
        """Returns columns of rows, which must be in rising order of ``frame``."""
        large = _frame_columns(rows, np.int64, "frame", "t_us", "answered_by")
        small = _frame_columns(rows, np.int32, "window", "model_version")
        sides = _frame_columns(rows, np.int16, "every", "resolution")
        analysed = _frame_columns(rows, np.bool_, "analysed")
        objects = _object_columns(rows, classes=np.int16, confidence=np.float32)
        return PredictionColumns(**large, **small, **sides, **analysed, **objects)

    def rows_after(self, frame: int) -> "PredictionColumns":
        """Returns the rows of later frames."""
        row = int(np.searchsorted(self.frame, frame, side="right"))
        return self.select_rows(np.arange(row, len(self.frame)))

    def select_rows(self, rows: NDArray[np.int64]) -> "PredictionColumns":
        """Returns these rows, in this order."""
        first, count = spans_of(rows, self.offsets)
        items = items_of(first, count)
        return PredictionColumns(
            frame=self.frame[rows],
            t_us=self.t_us[rows],
            window=self.window[rows],
            analysed=self.analysed[rows],
            answered_by=self.answered_by[rows],
            model_version=self.model_version[rows],
            every=self.every[rows],
            resolution=self.resolution[rows],
            offsets=offsets_of(count),
            boxes=self.boxes[items],
            classes=self.classes[items],
            confidence=self.confidence[items],
        )

    def replace_rows(self, other: "PredictionColumns") -> "PredictionColumns":
        """Returns these rows, with those of ``other`` in place of those of the same frames."""
        frames = np.unique(np.concatenate([self.frame, other.frame]))
        both = PredictionColumns(
            **{
                name: np.concatenate([getattr(self, name), getattr(other, name)])
                for name in (*_OF_FRAMES, "boxes", "classes", "confidence")
            },
            offsets=np.concatenate([self.offsets, self.offsets[-1] + other.offsets[1:]]),
        )
        own, others = rows_of(frames, self.frame), rows_of(frames, other.frame)
        return both.select_rows(np.where(others >= 0, len(self.frame) + others, own))


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceColumns:
    """The whole reference of a stream: F rows with rising ``frame``, M objects in total.

    Attributes:
        frame, t_us: (F,) int64.
        offsets: (F + 1,) int64.
        boxes: (M, 4) float32.
        classes: (M,) int16.
        tracks: (M,) int64.
    """

    frame: NDArray[np.int64]
    t_us: NDArray[np.int64]
    offsets: NDArray[np.int64]
    boxes: NDArray[np.float32]
    classes: NDArray[np.int16]
    tracks: NDArray[np.int64]

    def select_frames(self, frames: NDArray[np.int64]) -> "ReferenceColumns":
        """Returns the rows of these frames."""
        wanted = np.isin(self.frame, frames)
        counts = np.diff(self.offsets)
        objects = np.repeat(wanted, counts)
        return ReferenceColumns(
            frame=self.frame[wanted],
            t_us=self.t_us[wanted],
            offsets=np.concatenate([[0], np.cumsum(counts[wanted])]).astype(np.int64),
            boxes=self.boxes[objects],
            classes=self.classes[objects],
            tracks=self.tracks[objects],
        )

    @staticmethod
    def from_rows(rows: Sequence[FrameReference]) -> "ReferenceColumns":
        """Returns columns of rows, which must be in rising order of ``frame``."""
        return ReferenceColumns(
            **_frame_columns(rows, np.int64, "frame", "t_us"),
            **_object_columns(rows, classes=np.int16, tracks=np.int64),
        )


@dataclass(frozen=True, slots=True, eq=False)
class LabelledBoxes:
    """Boxes of labelled objects, which scoring must leave out.

    Attributes:
        frame: (L,) int64.
        boxes: (L, 4) float32, x0 y0 x1 y1 in pixels.
    """

    frame: NDArray[np.int64]
    boxes: NDArray[np.float32]

    @staticmethod
    def join_boxes(parts: Iterable["LabelledBoxes"]) -> "LabelledBoxes":
        """Returns the concatenation of the parts."""
        every = [NO_LABELS, *parts]
        return LabelledBoxes(
            np.concatenate([part.frame for part in every]), np.concatenate([part.boxes for part in every])
        )


NO_LABELS = LabelledBoxes(np.empty(0, np.int64), np.empty((0, 4), np.float32))
"""Value for a stream without labels."""


_Rows = Sequence[FramePrediction] | Sequence[FrameReference]


def _frame_columns(rows: _Rows, kind: type[np.generic], *names: str) -> dict[str, NDArray[Any]]:
    """Returns fields with one value per frame."""
    return {name: np.array([getattr(row, name) for row in rows], kind) for name in names}


def _object_columns(rows: _Rows, **kinds: type[np.generic]) -> dict[str, NDArray[Any]]:
    """Returns the offsets of the frames' objects, their boxes, and fields with one value per object."""
    counts = np.array([len(row.classes) for row in rows], np.int64)
    boxes = [np.empty((0, 4), np.float32), *(row.boxes.reshape(-1, 4) for row in rows)]
    values = {
        name: np.concatenate([np.empty(0, kind), *(getattr(row, name) for row in rows)], dtype=kind)
        for name, kind in kinds.items()
    }
    return {
        "offsets": np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        "boxes": np.concatenate(boxes, dtype=np.float32),
        **values,
    }


_PAIRS_AT_ONCE = 500_000


def iterate_pairs(
    first: NDArray[np.int64], count: NDArray[np.int64]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yields all pairs of a left item and each of its right items, some hundred thousand at a time.

    The pairs of one left item are always in one batch.

    Args:
        first: (L,) index of each left item's first right item.
        count: (L,) number of its right items, which are consecutive.

    Yields:
        (left, right), each (P,), sorted by left and then by right.
    """
    ends = np.cumsum(count)
    begin = 0
    while begin < len(count):
        done = ends[begin - 1] if begin else 0
        # At least one left item, also one that has more pairs than a batch.
        end = max(begin + 1, int(np.searchsorted(ends, done + _PAIRS_AT_ONCE, side="right")))
        counts = count[begin:end]
        left = np.repeat(np.arange(begin, end), counts)
        within = np.arange(len(left)) - np.repeat(np.cumsum(counts) - counts, counts)
        yield left, np.repeat(first[begin:end], counts) + within
        begin = end


def rows_of(wanted: NDArray[np.int64], frames: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the position of each wanted frame in ``frames``, which rises strictly; -1 if it is absent."""
    if len(frames) == 0:
        return np.full(len(wanted), -1, np.int64)
    # A frame behind the last one is found at the length, which is no row.
    at = np.minimum(np.searchsorted(frames, wanted), len(frames) - 1)
    return np.where(frames[at] == wanted, at, -1)


def spans_of(
    rows: NDArray[np.int64], offsets: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the first item and number of items of each row, the arguments of ``pairs``; 0 for row -1."""
    known = rows >= 0
    safe = np.where(known, rows, 0)
    # Without rows there is no second offset to read.
    if len(offsets) == 1:
        return np.zeros_like(rows), np.zeros_like(rows)
    return np.where(known, offsets[safe], 0), np.where(known, offsets[safe + 1] - offsets[safe], 0)


def items_of(first: NDArray[np.int64], count: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the items of all spans, one span after the other: (sum of ``count``,)."""
    ends = np.cumsum(count)
    items: NDArray[np.int64] = np.arange(int(count.sum())) + np.repeat(first - (ends - count), count)
    return items


def offsets_of(count: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the (rows + 1,) offsets of rows with these numbers of items."""
    return np.concatenate([[0], np.cumsum(count)]).astype(np.int64)
