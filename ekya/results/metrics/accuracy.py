"""Measures the accuracy of streams: every object of every frame that arrived counts."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekya.core.records import LabelledBoxes, PredictionColumns, ReferenceColumns
from ekya.core.units import US_PER_S

SAME_OBJECT_IOU = 0.5
"""Minimum IoU of two boxes of the same object."""

_PAIRS_AT_ONCE = 500_000


def pairs(
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
        end = max(begin + 1, int(np.searchsorted(ends, done + _PAIRS_AT_ONCE, side="right")))
        counts = count[begin:end]
        left = np.repeat(np.arange(begin, end), counts)
        within = np.arange(len(left)) - np.repeat(np.cumsum(counts) - counts, counts)
        yield left, np.repeat(first[begin:end], counts) + within
        begin = end


def iou(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float64]:
    """Returns the intersection over union of boxes, row by row.

    Args:
        a, b: (P, 4) x0 y0 x1 y1.

    Returns:
        (P,) in [0, 1]; 0 if both boxes are empty.
    """
    a64, b64 = a.astype(np.float64), b.astype(np.float64)
    size = np.minimum(a64[:, 2:], b64[:, 2:]) - np.maximum(a64[:, :2], b64[:, :2])
    intersection: NDArray[np.float64] = np.prod(np.maximum(size, 0.0), axis=1)
    union = _area(a64) + _area(b64) - intersection
    overlap: NDArray[np.float64] = np.zeros(len(union))
    np.divide(intersection, union, out=overlap, where=union > 0)
    return overlap


def rows_of(wanted: NDArray[np.int64], frames: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the position of each wanted frame in ``frames``, which rises strictly; -1 if it is absent."""
    if len(frames) == 0:
        return np.full(len(wanted), -1, np.int64)
    at = np.minimum(np.searchsorted(frames, wanted), len(frames) - 1)
    return np.where(frames[at] == wanted, at, -1)


def spans_of(
    rows: NDArray[np.int64], offsets: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the first item and number of items of each row, the arguments of ``pairs``; 0 for row -1."""
    known = rows >= 0
    safe = np.where(known, rows, 0)
    if len(offsets) == 1:
        return np.zeros_like(rows), np.zeros_like(rows)
    return np.where(known, offsets[safe], 0), np.where(known, offsets[safe + 1] - offsets[safe], 0)


def _area(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    area: NDArray[np.float64] = np.prod(np.maximum(boxes[:, 2:] - boxes[:, :2], 0.0), axis=1)
    return area


@dataclass(frozen=True, slots=True)
class WindowScore:
    """Score of one stream in one window.

    Attributes:
        index: the window.
        counted_by_class, correct_by_class: objects that count, and those that were answered
            correctly, for each of the fleet's classes by true class.
    """

    index: int
    counted_by_class: tuple[int, ...]
    correct_by_class: tuple[int, ...]

    @property
    def counted(self) -> int:
        """Number of objects that count."""
        return sum(self.counted_by_class)

    @property
    def correct(self) -> int:
        """Number of objects that were answered correctly."""
        return sum(self.correct_by_class)

    @property
    def accuracy(self) -> float | None:
        """Fraction of the objects that was answered correctly; None if none counts."""
        return self.correct / self.counted if self.counted else None

    @property
    def balanced_accuracy(self) -> float | None:
        """Mean accuracy over the classes that occur; None if no object counts."""
        return mean_or_none(
            [
                correct / counted if counted else None
                for counted, correct in zip(self.counted_by_class, self.correct_by_class, strict=True)
            ]
        )


@dataclass(frozen=True, slots=True)
class FrameCounts:
    """Numbers of frames of a stream, or of all streams.

    Attributes:
        arrived: frames that were decoded.
        analysed: frames that the model analysed.
        skipped: frames left out because of λ or the share; an earlier frame's boxes answer for them.
        lost: frames that appear in no prediction. A correct run loses none.
    """

    arrived: int
    analysed: int
    skipped: int
    lost: int


@dataclass(frozen=True, slots=True, eq=False)
class ScoreSeries:
    """Objects that count and objects that are correct, by second.

    Attributes:
        start_us: (S,) int64, start of each second; rising, seconds without a frame are left out.
        counted, correct: (S,) int64.
    """

    start_us: NDArray[np.int64]
    counted: NDArray[np.int64]
    correct: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class StreamScore:
    """Score of one stream over the whole run.

    Attributes:
        windows: in order, those in which a frame arrived.
        series: for figures.
        frames: their numbers.
        excluded_objects: objects excluded because labels were taken from them.
        called_objects: boxes of analysed frames that have a reference.
        false_alarms: those that no reference object of their frame overlaps and that were classified as
            other than background; 0 if the source gives the true boxes.
    """

    windows: tuple[WindowScore, ...]
    series: ScoreSeries
    frames: FrameCounts
    excluded_objects: int
    called_objects: int
    false_alarms: int

    @property
    def accuracy(self) -> float | None:
        """Mean over the windows in which objects count; None if there is none."""
        return mean_or_none([window.accuracy for window in self.windows])

    @property
    def balanced_accuracy(self) -> float | None:
        """Mean of the windows' balanced accuracies; None if there is none."""
        return mean_or_none([window.balanced_accuracy for window in self.windows])

    @property
    def false_alarm_share(self) -> float | None:
        """False alarms as a fraction of ``called_objects``; None if there are none."""
        return self.false_alarms / self.called_objects if self.called_objects else None


def score_stream(
    predictions: PredictionColumns,
    reference: ReferenceColumns,
    labelled: LabelledBoxes,
    *,
    decoded: int,
    class_count: int,
    background: int | None = None,
) -> StreamScore:
    """Scores one stream against its reference.

    A true object is correct only if one of the boxes that answer for its frame overlaps it at
    ``SAME_OBJECT_IOU`` or more and has its class. A lost frame has no answer, and counts in the window
    of the frame before it. An object of which any box was labelled for training or validation counts in
    no window.

    Args:
        predictions: strictly rising by frame.
        reference: strictly rising by frame; may include frames that never arrived.
        labelled: boxes with training and validation labels, in any order.
        decoded: number of frames that arrived: those from 0 to ``decoded - 1``.
        class_count: number of classes of the fleet; classes outside this range are never correct.
        background: index of the class "no object", if the fleet has one.

    Raises:
        ValueError: rows are not in rising order, or a frame is answered by a later one.
    """
    _check(predictions, reference)
    arrived = max(decoded, int(predictions.frame[-1]) + 1 if len(predictions.frame) else 0)
    row_of_object = np.repeat(np.arange(len(reference.frame)), np.diff(reference.offsets))
    known_class = (reference.classes >= 0) & (reference.classes < class_count)
    excluded = np.isin(reference.tracks, labelled_tracks(labelled, reference))
    arrived_object = (reference.frame < arrived)[row_of_object]
    counts = arrived_object & known_class & ~excluded
    correct = _answered_correctly(predictions, reference, row_of_object) & counts
    window_of_object = _windows(predictions, reference.frame)[row_of_object[counts]]
    called, false_alarms = _false_alarms(predictions, reference, background)
    analysed = int(np.count_nonzero(predictions.analysed))
    return StreamScore(
        windows=_by_window(
            np.unique(np.concatenate([predictions.window.astype(np.int64), window_of_object])),
            window_of_object,
            reference.classes[counts],
            correct[counts],
            class_count,
        ),
        series=_by_second(reference, row_of_object, counts, correct, reference.frame < arrived),
        frames=FrameCounts(
            arrived=arrived,
            analysed=analysed,
            skipped=len(predictions.frame) - analysed,
            lost=arrived - len(predictions.frame),
        ),
        excluded_objects=int(np.count_nonzero(arrived_object & known_class & excluded)),
        called_objects=called,
        false_alarms=false_alarms,
    )


def mean_or_none(values: list[float | None]) -> float | None:
    """Returns the mean of the values that are not None; None if there are none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def rounded(value: float | None, digits: int = 6) -> float | None:
    """Returns a number as a summary shows it."""
    return None if value is None else round(value, digits)


def _check(predictions: PredictionColumns, reference: ReferenceColumns) -> None:
    for what, frames in (("predictions", predictions.frame), ("reference", reference.frame)):
        if len(frames) and (frames[0] < 0 or np.any(np.diff(frames) <= 0)):
            raise ValueError(f"the frames of the {what} must rise from 0 or later")
    if np.any(predictions.answered_by > predictions.frame):
        raise ValueError("a frame is answered by a later one")


def labelled_tracks(labelled: LabelledBoxes, reference: ReferenceColumns) -> NDArray[np.int64]:
    """Returns the (T,) tracks of the reference objects that labelled boxes overlap best, sorted."""
    rows = rows_of(labelled.frame, reference.frame)
    tracks = [np.empty(0, np.int64)]
    for left, right in pairs(*spans_of(rows, reference.offsets)):
        overlap = iou(labelled.boxes[left], reference.boxes[right])
        # Sorted by label, then best overlap first; of equal overlaps the first object.
        order = np.lexsort((right, -overlap, left))
        best = order[np.append(True, left[order][1:] != left[order][:-1])[: len(order)]]
        tracks.append(reference.tracks[right[best[overlap[best] >= SAME_OBJECT_IOU]]])
    return np.unique(np.concatenate(tracks))


def _answered_correctly(
    predictions: PredictionColumns, reference: ReferenceColumns, row_of_object: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Returns (objects,) bool: a box of the answering frame overlaps the object and has its class."""
    own = rows_of(reference.frame, predictions.frame)
    answering = np.full(len(own), -1, np.int64)
    answering[own >= 0] = predictions.answered_by[own[own >= 0]]
    rows = rows_of(answering, predictions.frame)
    correct = np.zeros(len(row_of_object), np.bool_)
    for left, right in pairs(*spans_of(rows[row_of_object], predictions.offsets)):
        same_class = reference.classes[left] == predictions.classes[right]
        objects, answers = left[same_class], right[same_class]
        hit = iou(reference.boxes[objects], predictions.boxes[answers]) >= SAME_OBJECT_IOU
        correct[objects[hit]] = True
    return correct


def _windows(predictions: PredictionColumns, frames: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the (frames,) window of each frame; a lost frame is in that of the frame before it."""
    if len(predictions.frame) == 0:
        return np.zeros(len(frames), np.int64)
    at = np.searchsorted(predictions.frame, frames, side="right") - 1
    return predictions.window[np.maximum(at, 0)].astype(np.int64)


def _by_window(
    windows: NDArray[np.int64],
    window_of_object: NDArray[np.int64],
    classes: NDArray[np.int16],
    correct: NDArray[np.bool_],
    class_count: int,
) -> tuple[WindowScore, ...]:
    """Returns the scores of ``windows``, which rise, from the objects that count."""
    place = np.searchsorted(windows, window_of_object) * class_count + classes
    cells = len(windows) * class_count
    counted = np.bincount(place, minlength=cells).reshape(len(windows), class_count)
    right = np.bincount(place[correct], minlength=cells).reshape(len(windows), class_count)
    return tuple(
        WindowScore(int(index), tuple(map(int, counted[i])), tuple(map(int, right[i])))
        for i, index in enumerate(windows)
    )


def _by_second(
    reference: ReferenceColumns,
    row_of_object: NDArray[np.int64],
    counts: NDArray[np.bool_],
    correct: NDArray[np.bool_],
    arrived: NDArray[np.bool_],
) -> ScoreSeries:
    second = reference.t_us // US_PER_S
    present = np.unique(second[arrived])
    place = np.searchsorted(present, second)[row_of_object]
    return ScoreSeries(
        start_us=present * US_PER_S,
        counted=np.bincount(place[counts], minlength=len(present)).astype(np.int64),
        correct=np.bincount(place[correct], minlength=len(present)).astype(np.int64),
    )


def _false_alarms(
    predictions: PredictionColumns, reference: ReferenceColumns, background: int | None
) -> tuple[int, int]:
    """Returns the number of boxes of analysed frames with a reference, and of false alarms among them."""
    rows = np.repeat(rows_of(predictions.frame, reference.frame), np.diff(predictions.offsets))
    analysed = np.repeat(predictions.analysed, np.diff(predictions.offsets)) & (rows >= 0)
    matched = np.zeros(len(rows), np.bool_)
    for left, right in pairs(*spans_of(np.where(analysed, rows, -1), reference.offsets)):
        hit = iou(predictions.boxes[left], reference.boxes[right]) >= SAME_OBJECT_IOU
        matched[left[hit]] = True
    named = np.ones(len(rows), np.bool_) if background is None else predictions.classes != background
    return int(np.count_nonzero(analysed)), int(np.count_nonzero(analysed & named & ~matched))
