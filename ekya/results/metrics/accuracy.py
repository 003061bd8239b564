"""Scores streams: the types of scores, and the accuracy of a stream whose edge model classifies.

Every object of every frame that arrived counts. ``detection_accuracy`` scores a stream whose edge model
detects, with the same types.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekya.core.objects import SAME_OBJECT_IOU, iou
from ekya.core.records import (
    LabelledBoxes,
    PredictionColumns,
    ReferenceColumns,
    iterate_pairs,
    rows_of,
    spans_of,
)
from ekya.core.units import US_PER_S


@dataclass(frozen=True, slots=True)
class WindowScore:
    """Score of one stream in one window: the parts that count, and those of them that are correct.

    In classification a part is an object, and has its true class. It is correct if it was answered correctly.

    In detection, objects of the reference and detected boxes are parts, each with its own class. A match
    makes both its object and its box correct. So with TP matches the accuracy is F1,
    2 TP / (objects + boxes). In a window without objects no box counts either.

    Attributes:
        index: the window.
        counted_by_class, correct_by_class: parts that count, and those that are correct, for each of the
            fleet's classes.
        ap50: mean over the classes that have objects of the average precision at IoU 0.5; None without
            objects, and in classification.
        boxes: detected boxes among the parts that count; 0 in classification.
    """

    index: int
    counted_by_class: tuple[int, ...]
    correct_by_class: tuple[int, ...]
    ap50: float | None = None
    boxes: int = 0

    @property
    def counted(self) -> int:
        """Number of parts that count."""
        return sum(self.counted_by_class)

    @property
    def objects(self) -> int:
        """Number of objects of the reference that count."""
        return self.counted - self.boxes

    @property
    def correct(self) -> int:
        """Number of parts that are correct."""
        return sum(self.correct_by_class)

    @property
    def accuracy(self) -> float | None:
        """Fraction of the parts that is correct (in detection F1 over all classes); None if none counts."""
        return self.correct / self.counted if self.counted else None

    @property
    def balanced_accuracy(self) -> float | None:
        """Mean accuracy (in detection F1) over the classes of the parts; None if none counts."""
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
        due: frames that the λ of their time intends to have analysed.
        late: those of ``due`` that were not: a newer frame came first.
    """

    arrived: int
    analysed: int
    skipped: int
    lost: int
    due: int = 0
    late: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class ScoreSeries:
    """Parts that count and parts that are correct, by second; ``WindowScore`` says what a part is.

    Attributes:
        start_us: (S,) int64, start of each second; rising, seconds without a frame are left out.
        counted, correct: (S,) int64.
    """

    start_us: NDArray[np.int64]
    counted: NDArray[np.int64]
    correct: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class WindowSample:
    """Scored frames of a stream's window.

    Attributes:
        counted, correct: (F,) parts that count, and that are correct, of each scored frame.
        frames: number of frames of the window that could have been scored.
    """

    counted: NDArray[np.int64]
    correct: NDArray[np.int64]
    frames: int

    @property
    def accuracy_variance(self) -> float | None:
        """Variance of the window's accuracy; None if it has no accuracy, or too few frames to tell."""
        scored, total = len(self.counted), float(self.counted.sum())
        if total == 0:
            return None
        if scored >= self.frames:
            return 0.0
        if scored < 2:
            return None
        ratio = float(self.correct.sum()) / total
        spread = float(((self.correct - ratio * self.counted) ** 2).sum()) * scored / (scored - 1)
        return (1.0 - scored / self.frames) * spread / total**2


@dataclass(frozen=True, slots=True, eq=False)
class StreamScore:
    """Score of one stream over the whole run.

    Attributes:
        windows: in order, those in which a frame arrived.
        series: for figures.
        frames: their numbers.
        excluded_objects: objects excluded because labels were taken from them, or in detection from their
            frame.
        called_objects: boxes of analysed frames that have a reference; in detection those of sufficient
            confidence.
        false_alarms: in classification, those of them that no reference object of their frame overlaps and
            that were classified as other than background; 0 if the source gives the true boxes. In
            detection, those that match no object of their class and overlap no doubtful one.
        samples: in detection, the scored frames of each window.
    """

    windows: tuple[WindowScore, ...]
    series: ScoreSeries
    frames: FrameCounts
    excluded_objects: int
    called_objects: int
    false_alarms: int
    samples: tuple[WindowSample, ...] = ()

    @property
    def scored_frames(self) -> int:
        """Number of frames that were scored, in detection."""
        return sum(len(sample.counted) for sample in self.samples)

    @property
    def objects(self) -> int:
        """Number of objects of the reference that count, over all windows."""
        return sum(window.objects for window in self.windows)

    @property
    def accuracy(self) -> float | None:
        """Mean over the windows in which parts count; None if there is none."""
        return mean_or_none([window.accuracy for window in self.windows])

    @property
    def balanced_accuracy(self) -> float | None:
        """Mean of the windows' balanced accuracies; None if there is none."""
        return mean_or_none([window.balanced_accuracy for window in self.windows])

    @property
    def ap50(self) -> float | None:
        """Mean of the windows' AP50; None if there is none."""
        return mean_or_none([window.ap50 for window in self.windows])

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
    """Scores one stream whose edge model classifies.

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
    check_rows(predictions, reference)
    arrived = arrived_frames(predictions, decoded)
    row_of_object = np.repeat(np.arange(len(reference.frame)), np.diff(reference.offsets))
    known_class = (reference.classes >= 0) & (reference.classes < class_count)
    excluded = np.isin(reference.tracks, labelled_tracks(labelled, reference))
    arrived_object = (reference.frame < arrived)[row_of_object]
    counts = arrived_object & known_class & ~excluded
    correct = _answered_correctly(predictions, reference, row_of_object)[counts]
    row = row_of_object[counts]
    window = windows_of(predictions, reference.frame)[row]
    called, false_alarms = _false_alarms(predictions, reference, background)
    return StreamScore(
        windows=by_window(
            windows_in(predictions, window), window, reference.classes[counts], correct, class_count
        ),
        series=by_second(reference.t_us[reference.frame < arrived], reference.t_us[row], correct),
        frames=frame_counts(predictions, arrived),
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


def check_rows(predictions: PredictionColumns, reference: ReferenceColumns) -> None:
    """Raises ValueError if rows are not in rising order, or a frame is answered by a later one."""
    for what, frames in (("predictions", predictions.frame), ("reference", reference.frame)):
        if len(frames) and (frames[0] < 0 or np.any(np.diff(frames) <= 0)):
            raise ValueError(f"the frames of the {what} must rise from 0 or later")
    if np.any(predictions.answered_by > predictions.frame):
        raise ValueError("a frame is answered by a later one")


def arrived_frames(predictions: PredictionColumns, decoded: int) -> int:
    """Returns the number of frames that arrived, those that were decoded or are in a prediction."""
    return max(decoded, int(predictions.frame[-1]) + 1 if len(predictions.frame) else 0)


def frame_counts(predictions: PredictionColumns, arrived: int) -> FrameCounts:
    """Returns the numbers of frames of a stream of which ``arrived`` frames arrived."""
    analysed = int(np.count_nonzero(predictions.analysed))
    due = int(np.count_nonzero(predictions.frame % np.maximum(predictions.every, 1) == 0))
    return FrameCounts(
        arrived=arrived,
        analysed=analysed,
        skipped=len(predictions.frame) - analysed,
        lost=arrived - len(predictions.frame),
        due=due,
        late=max(due - analysed, 0),
    )


def labelled_tracks(labelled: LabelledBoxes, reference: ReferenceColumns) -> NDArray[np.int64]:
    """Returns the (T,) tracks of the reference objects that labelled boxes overlap best, sorted."""
    rows = rows_of(labelled.frame, reference.frame)
    tracks = [np.empty(0, np.int64)]
    for left, right in iterate_pairs(*spans_of(rows, reference.offsets)):
        overlap = iou(labelled.boxes[left], reference.boxes[right])
        # Sorted by label, then best overlap first; of equal overlaps the first object.
        order = np.lexsort((right, -overlap, left))
        # Cut, since for no pairs np.append gives one flag too many.
        best = order[np.append(True, left[order][1:] != left[order][:-1])[: len(order)]]
        tracks.append(reference.tracks[right[best[overlap[best] >= SAME_OBJECT_IOU]]])
    return np.unique(np.concatenate(tracks))


def _answered_correctly(
    predictions: PredictionColumns, reference: ReferenceColumns, row_of_object: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Returns (objects,) bool: a box of the answering frame overlaps the object and has its class."""
    rows = answering_rows(predictions, reference.frame)
    correct = np.zeros(len(row_of_object), np.bool_)
    for left, right in iterate_pairs(*spans_of(rows[row_of_object], predictions.offsets)):
        same_class = reference.classes[left] == predictions.classes[right]
        objects, answers = left[same_class], right[same_class]
        hit = iou(reference.boxes[objects], predictions.boxes[answers]) >= SAME_OBJECT_IOU
        correct[objects[hit]] = True
    return correct


def answering_rows(predictions: PredictionColumns, frames: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the (frames,) row of predictions whose boxes answer for each frame; -1 if it has no answer."""
    own = rows_of(frames, predictions.frame)
    answering = np.full(len(own), -1, np.int64)
    answering[own >= 0] = predictions.answered_by[own[own >= 0]]
    return rows_of(answering, predictions.frame)


def windows_of(predictions: PredictionColumns, frames: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the (frames,) window of each frame; a lost frame is in that of the frame before it."""
    if len(predictions.frame) == 0:
        return np.zeros(len(frames), np.int64)
    at = np.searchsorted(predictions.frame, frames, side="right") - 1
    return predictions.window[np.maximum(at, 0)].astype(np.int64)


def windows_in(predictions: PredictionColumns, window_of_part: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the windows in which a frame or part occurs, rising."""
    return np.unique(np.concatenate([predictions.window.astype(np.int64), window_of_part]))


def by_window(
    windows: NDArray[np.int64],
    window_of_part: NDArray[np.int64],
    classes: NDArray[np.int16],
    correct: NDArray[np.bool_],
    class_count: int,
) -> tuple[WindowScore, ...]:
    """Returns the scores of ``windows``, which rise, from the parts that count."""
    place = np.searchsorted(windows, window_of_part) * class_count + classes
    cells = len(windows) * class_count
    counted = np.bincount(place, minlength=cells).reshape(len(windows), class_count)
    right = np.bincount(place[correct], minlength=cells).reshape(len(windows), class_count)
    return tuple(
        WindowScore(int(index), tuple(map(int, counted[i])), tuple(map(int, right[i])))
        for i, index in enumerate(windows)
    )


def by_second(
    arrived_us: NDArray[np.int64], part_us: NDArray[np.int64], correct: NDArray[np.bool_]
) -> ScoreSeries:
    """Returns the series of the parts that count.

    Args:
        arrived_us: times of all frames of the reference that arrived, rising.
        part_us: (P,) time of each part's frame, one of these.
        correct: (P,) whether the part is correct.
    """
    present = np.unique(arrived_us // US_PER_S)
    place = np.searchsorted(present, part_us // US_PER_S)
    return ScoreSeries(
        start_us=present * US_PER_S,
        counted=np.bincount(place, minlength=len(present)).astype(np.int64),
        correct=np.bincount(place[correct], minlength=len(present)).astype(np.int64),
    )


def _false_alarms(
    predictions: PredictionColumns, reference: ReferenceColumns, background: int | None
) -> tuple[int, int]:
    """Returns the number of boxes of analysed frames with a reference, and of false alarms among them."""
    rows = np.repeat(rows_of(predictions.frame, reference.frame), np.diff(predictions.offsets))
    analysed = np.repeat(predictions.analysed, np.diff(predictions.offsets)) & (rows >= 0)
    matched = np.zeros(len(rows), np.bool_)
    for left, right in iterate_pairs(*spans_of(np.where(analysed, rows, -1), reference.offsets)):
        hit = iou(predictions.boxes[left], reference.boxes[right]) >= SAME_OBJECT_IOU
        matched[left[hit]] = True
    named = np.ones(len(rows), np.bool_) if background is None else predictions.classes != background
    return int(np.count_nonzero(analysed)), int(np.count_nonzero(analysed & named & ~matched))
