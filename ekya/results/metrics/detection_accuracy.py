"""Scores a stream whose edge model detects: F1 and average precision at an IoU of 0.5, with class."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ekya.core.objects import SURE, FrameBoxes, match_frames
from ekya.core.records import (
    LabelledBoxes,
    PredictionColumns,
    ReferenceColumns,
    items_of,
    offsets_of,
    spans_of,
)
from ekya.results.metrics.accuracy import (
    StreamScore,
    WindowSample,
    WindowScore,
    answering_rows,
    arrived_frames,
    by_second,
    by_window,
    check_rows,
    frame_counts,
    mean_or_none,
    windows_in,
    windows_of,
)

_RECALLS = 101


def average_precisions(
    objects: NDArray[np.int64],
    group: NDArray[np.int64],
    confidence: NDArray[np.float32],
    hit: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """Returns the (G,) average precision of each group, for example a class; NaN for one without objects.

    It is COCO's: the mean, over 101 recalls, of the best precision from each on.

    Args:
        objects: (G,) number of objects of each group.
        group: (N,) index of the group that each prediction belongs to. Ignored predictions are left out.
        confidence: (N,); predictions of equal confidence rank in their order.
        hit: (N,) whether the prediction matched an object.
    """
    order = np.lexsort((-confidence, group))
    ends = np.searchsorted(group[order], np.arange(len(objects) + 1))
    result = np.full(len(objects), np.nan)
    for index in np.flatnonzero(objects):
        result[index] = _average_precision(hit[order[ends[index] : ends[index + 1]]], int(objects[index]))
    return result


def _average_precision(hit: NDArray[np.bool_], objects: int) -> float:
    """Returns the average precision of predictions in falling confidence."""
    rank_of_hit = np.flatnonzero(hit) + 1
    precision = np.arange(1, len(rank_of_hit) + 1) / rank_of_hit
    best = np.maximum.accumulate(precision[::-1])[::-1]
    # Hits needed for a recall of k hundredths, in whole numbers: no rounding decides.
    needed = np.maximum((np.arange(_RECALLS) * objects + _RECALLS - 2) // (_RECALLS - 1), 1)
    reached = needed[needed <= len(best)]
    return float(best[reached - 1].sum() / _RECALLS)


def score_detections(
    predictions: PredictionColumns,
    reference: ReferenceColumns,
    labelled: LabelledBoxes,
    *,
    decoded: int,
    class_count: int,
) -> StreamScore:
    """Scores one stream whose edge model detects; ``WindowScore`` says what counts as what.

    ``match_frames`` matches the boxes that answer for a frame to the objects of its reference. Those of a
    confidence of ``SURE`` or more count, unless they are ignored; AP50 ranks those of any confidence. A lost
    frame has no answer, and its objects count in the window of the frame before it. A frame from which
    labels were taken counts in no window, nor does a frame without a reference.

    Args:
        predictions: strictly rising by frame.
        reference: strictly rising by frame; may include frames that never arrived. Boxes of the class
            ``DOUBTFUL`` are doubtful; those of other classes that the fleet does not have are nothing.
        labelled: frames from which labels were taken, in any order; its boxes do not matter.
        decoded: number of frames that arrived: those from 0 to ``decoded - 1``.
        class_count: number of classes of the fleet; predictions of other classes do not count.

    Raises:
        ValueError: rows are not in rising order, or a frame is answered by a later one.
    """
    check_rows(predictions, reference)
    arrived = arrived_frames(predictions, decoded)
    arrived_row = reference.frame < arrived
    labelled_row = np.isin(reference.frame, labelled.frame)
    scored = reference.select_frames(reference.frame[arrived_row & ~labelled_row])
    window_of_row = windows_of(predictions, scored.frame)
    objects = _objects(scored, class_count)
    answers = _answers(predictions, scored, class_count)

    # In a window without objects there is nothing to detect, whatever was predicted.
    to_detect = np.isin(window_of_row, window_of_row[objects.row])
    counts = answers.judged & answers.sure & to_detect[answers.row]
    found = np.isin(objects.item, answers.object[counts])
    row = np.concatenate([objects.row, answers.row[counts]])
    classes = np.concatenate([objects.classes, answers.classes[counts]])
    correct = np.concatenate([found, answers.hit[counts]])
    window = window_of_row[row]
    windows = by_window(windows_in(predictions, window), window, classes, correct, class_count)
    called = answers.own & answers.sure
    return StreamScore(
        windows=_completed(windows, window_of_row, objects, answers, counts, class_count),
        series=by_second(reference.t_us[arrived_row], scored.t_us[row], correct),
        frames=frame_counts(predictions, arrived),
        excluded_objects=int(
            np.count_nonzero(
                np.repeat(arrived_row & labelled_row, np.diff(reference.offsets))
                & _known(reference.classes, class_count)
            )
        ),
        called_objects=int(np.count_nonzero(called)),
        false_alarms=int(np.count_nonzero(called & answers.judged & ~answers.hit)),
        samples=_samples(predictions, labelled, window_of_row, row, correct),
    )


def _samples(
    predictions: PredictionColumns,
    labelled: LabelledBoxes,
    window_of_row: NDArray[np.int64],
    row: NDArray[np.int64],
    correct: NDArray[np.bool_],
) -> tuple[WindowSample, ...]:
    """Returns the scored frames of each window; ``row`` and ``correct`` are of the parts that count."""
    counted_in = np.bincount(row, minlength=len(window_of_row))
    correct_in = np.bincount(row[correct], minlength=len(window_of_row))
    could_be = predictions.window[~np.isin(predictions.frame, labelled.frame)]
    return tuple(
        WindowSample(
            counted_in[window_of_row == window],
            correct_in[window_of_row == window],
            int(np.count_nonzero(could_be == window)),
        )
        for window in np.unique(window_of_row)
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Objects:
    """The M objects of the scored frames, without doubtful ones.

    Attributes:
        row: (M,) int64, row of the reference.
        item: (M,) int64, place among the boxes of the reference, rising.
        classes: (M,) int16.
    """

    row: NDArray[np.int64]
    item: NDArray[np.int64]
    classes: NDArray[np.int16]


@dataclass(frozen=True, slots=True, eq=False)
class _Answers:
    """The N boxes that answer for the scored frames; a box occurs once for each frame that it answers for.

    Attributes:
        row: (N,) int64, row of the reference.
        classes: (N,) int16.
        confidence: (N,) float32.
        object: (N,) int64, the reference box that it matches; -1 if it matches none.
        judged: (N,) bool, right or wrong: has a class of the fleet and is not ignored.
        own: (N,) bool, has a class of the fleet and is of the frame itself, which was analysed.
    """

    row: NDArray[np.int64]
    classes: NDArray[np.int16]
    confidence: NDArray[np.float32]
    object: NDArray[np.int64]
    judged: NDArray[np.bool_]
    own: NDArray[np.bool_]

    @property
    def sure(self) -> NDArray[np.bool_]:
        """(N,) bool: confident enough to count."""
        return self.confidence >= SURE

    @property
    def hit(self) -> NDArray[np.bool_]:
        """(N,) bool: matches an object."""
        return self.object >= 0


def _known(classes: NDArray[np.int16], class_count: int) -> NDArray[np.bool_]:
    return (classes >= 0) & (classes < class_count)


def _objects(reference: ReferenceColumns, class_count: int) -> _Objects:
    row = np.repeat(np.arange(len(reference.frame)), np.diff(reference.offsets))
    item = np.flatnonzero(_known(reference.classes, class_count))
    return _Objects(row[item], item, reference.classes[item])


def _answers(predictions: PredictionColumns, reference: ReferenceColumns, class_count: int) -> _Answers:
    answering = answering_rows(predictions, reference.frame)
    first, count = spans_of(answering, predictions.offsets)
    item = items_of(first, count)
    row = np.repeat(np.arange(len(reference.frame)), count)
    classes, confidence = predictions.classes[item], predictions.confidence[item]
    matches = match_frames(
        FrameBoxes(offsets_of(count), predictions.boxes[item], classes),
        confidence,
        FrameBoxes(reference.offsets, reference.boxes, reference.classes),
    )
    known = _known(classes, class_count)
    of_itself = predictions.frame[answering[row]] == reference.frame[row]
    return _Answers(
        row=row,
        classes=classes,
        confidence=confidence,
        object=matches.object,
        judged=known & ~matches.ignored,
        own=known & of_itself & predictions.analysed[answering[row]],
    )


def _completed(
    windows: tuple[WindowScore, ...],
    window_of_row: NDArray[np.int64],
    objects: _Objects,
    answers: _Answers,
    counts: NDArray[np.bool_],
    class_count: int,
) -> tuple[WindowScore, ...]:
    """Returns the windows with their AP50, and with the number of answers that ``counts`` selects."""
    place_of_row = np.searchsorted(np.array([window.index for window in windows]), window_of_row)
    ranked = answers.judged
    by_class = average_precisions(
        np.bincount(
            place_of_row[objects.row] * class_count + objects.classes, minlength=len(windows) * class_count
        ),
        (place_of_row[answers.row] * class_count + answers.classes)[ranked],
        answers.confidence[ranked],
        answers.hit[ranked],
    ).reshape(len(windows), class_count)
    boxes = np.bincount(place_of_row[answers.row[counts]], minlength=len(windows)).tolist()
    return tuple(
        replace(
            window,
            ap50=mean_or_none([None if np.isnan(value) else float(value) for value in values]),
            boxes=count,
        )
        for window, values, count in zip(windows, by_class, boxes, strict=True)
    )
