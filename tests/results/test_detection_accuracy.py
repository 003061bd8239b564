from dataclasses import replace

import numpy as np
import pytest
from counting import calls_of
from frame_rows import CLASSES, FAR, LEFT, NEAR, Box, Item, seen, steady_stream, true
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ekya.core.objects import DOUBTFUL, match_image
from ekya.core.records import (
    NO_LABELS,
    NOT_ANSWERED,
    FramePrediction,
    FrameReference,
    LabelledBoxes,
    PredictionColumns,
    ReferenceColumns,
)
from ekya.results.metrics.accuracy import StreamScore, score_stream
from ekya.results.metrics.detection_accuracy import average_precisions, score_detections


def with_more(row: FrameReference, *more: Item) -> FrameReference:
    """Returns a row with boxes added before its own."""
    own = zip(map(tuple, row.boxes.tolist()), row.classes.tolist(), strict=True)
    return true(row.frame, [*more, *own])


def labels_from(*frames: int) -> LabelledBoxes:
    return LabelledBoxes(np.array(frames, np.int64), np.zeros((len(frames), 4), np.float32))


def score(
    predictions: list[FramePrediction],
    reference: list[FrameReference],
    labelled: LabelledBoxes = NO_LABELS,
    decoded: int | None = None,
) -> StreamScore:
    return score_detections(
        PredictionColumns.from_rows(predictions),
        ReferenceColumns.from_rows(reference),
        labelled,
        decoded=len(reference) if decoded is None else decoded,
        class_count=CLASSES,
    )


def test_score_of_four_frames_by_hand() -> None:
    result = score(
        [
            seen(0, [(LEFT, 0, 0.9), (FAR, 0, 0.8), (FAR, 1, 0.4)]),
            seen(1, [], by=0),
            seen(3, [(LEFT, 0, 0.7)], window=1),
        ],
        [
            true(0, [(LEFT, 0), (FAR, 1)]),  # one found, one called by a wrong name
            true(1, [(NEAR, 0)]),  # the boxes of frame 0 still find it, and are wrong once more
            true(2, [(LEFT, 0)]),  # lost
            true(3, [(LEFT, 0)]),
        ],
    )
    first, second = result.windows
    # Class 0: three objects, four boxes of sufficient confidence, two matches.
    assert (first.counted_by_class, first.correct_by_class) == ((7, 1, 0), (4, 0, 0))
    assert first.accuracy == 0.5
    assert (first.objects, first.boxes, second.objects, second.boxes, result.objects) == (4, 4, 1, 1, 5)
    assert first.balanced_accuracy == pytest.approx((4 / 7 + 0) / 2)
    # Class 0 finds two of three before anything wrong; the first box of class 1 is right.
    assert first.ap50 == pytest.approx((67 / 101 + 1) / 2)
    assert (second.accuracy, second.ap50) == (1.0, 1.0)
    assert result.accuracy == 0.75
    assert result.ap50 == pytest.approx(((67 / 101 + 1) / 2 + 1) / 2)
    assert (result.called_objects, result.false_alarms) == (3, 1)
    assert (result.frames.analysed, result.frames.skipped, result.frames.lost) == (2, 1, 1)
    assert result.series.start_us.tolist() == [0, 1_000_000]
    assert result.series.counted.tolist() == [8, 2]
    assert result.series.correct.tolist() == [4, 2]


def test_window_without_objects_counts_nothing_but_false_alarms() -> None:
    result = score(
        [seen(0, [(LEFT, 0, 0.9)]), *(seen(i, [(FAR, 1, 0.9)], window=1) for i in (1, 2, 3))],
        [true(0, [(LEFT, 0)]), true(1, []), true(2, [(LEFT, DOUBTFUL)]), true(3, [])],
    )
    assert [(w.accuracy, w.ap50, w.counted, w.correct) for w in result.windows] == [
        (1.0, 1.0, 2, 2),
        (None, None, 0, 0),
    ]
    assert (result.series.counted.tolist(), result.series.correct.tolist()) == ([2, 0], [2, 0])
    assert (result.accuracy, result.ap50) == (1.0, 1.0)
    assert (result.called_objects, result.false_alarms) == (4, 3)


def test_box_on_an_empty_frame_is_wrong_where_the_window_has_objects() -> None:
    result = score(
        [seen(0, [(LEFT, 0, 0.9)]), seen(1, [(LEFT, 0, 0.9)])], [true(0, [(LEFT, 0)]), true(1, [])]
    )
    assert result.accuracy == pytest.approx(2 / 3)


def test_confidence_of_half_counts_and_less_does_not() -> None:
    least = score([seen(0, [(LEFT, 0, 0.5), (FAR, 0, 0.49)])], [true(0, [(LEFT, 0)])])
    assert (least.windows[0].counted, least.windows[0].correct, least.called_objects) == (2, 2, 1)


def test_boxes_of_no_class_are_no_objects_and_only_doubtful_ones_excuse() -> None:
    result = score(
        [seen(0, [(LEFT, 0, 0.9), (NEAR, 1, 0.8), (FAR, 1, 0.7), (FAR, CLASSES, 0.9)])],
        [true(0, [(LEFT, 0), (NEAR, DOUBTFUL), (FAR, CLASSES), (FAR, -2)])],
    )
    assert result.windows[0].counted_by_class == (2, 1, 0)
    assert (result.called_objects, result.false_alarms) == (3, 1)


def test_labelled_frame_counts_in_no_window() -> None:
    result = score(
        [seen(0, [(FAR, 1, 0.9)]), seen(1, [(LEFT, 0, 0.9)]), seen(2, [], by=1)],
        [true(0, [(LEFT, 0), (FAR, 1), (NEAR, DOUBTFUL)]), true(1, [(LEFT, 0)]), true(2, [(LEFT, 0)])],
        labels_from(0, 1, 0, 7),
    )
    assert (result.windows[0].counted, result.windows[0].correct) == (2, 2)
    assert result.excluded_objects == 3
    assert result.called_objects == 0
    assert result.series.start_us.tolist() == [0]


def test_objects_before_the_first_answer_are_missed() -> None:
    result = score(
        [seen(0, [], by=NOT_ANSWERED), seen(1, [(LEFT, 0, 0.9)])],
        [true(0, [(LEFT, 0)]), true(1, [(LEFT, 0)])],
    )
    assert (result.windows[0].counted, result.windows[0].correct) == (3, 2)


def test_boxes_on_a_frame_that_was_not_analysed_are_scored_but_not_called() -> None:
    moved = replace(seen(1, [(NEAR, 0, 0.9), (FAR, 0, 0.9)]), analysed=False)
    result = score([seen(0, [(LEFT, 0, 0.9)]), moved], [true(0, [(LEFT, 0)]), true(1, [(NEAR, 0)])])
    assert (result.windows[0].counted, result.windows[0].correct) == (5, 4)
    assert (result.called_objects, result.false_alarms) == (1, 0)


def test_frame_without_reference_counts_nothing() -> None:
    result = score([seen(0, [(LEFT, 0, 0.9)]), seen(1, [(FAR, 0, 0.9)])], [true(0, [(LEFT, 0)])])
    assert (result.accuracy, result.called_objects) == (1.0, 1)


def test_stream_without_rows_has_no_score() -> None:
    nothing = score([], [], decoded=3)
    assert (nothing.accuracy, nothing.ap50, nothing.frames.lost, nothing.windows) == (None, None, 3, ())
    lost = score([], [true(0, [(LEFT, 0)])])
    assert (lost.accuracy, lost.ap50) == (0.0, 0.0)


def test_future_answers_or_disorder_raise() -> None:
    with pytest.raises(ValueError, match="later"):
        score([seen(0, [], by=1), seen(1, [])], [])
    with pytest.raises(ValueError, match="rise"):
        score([seen(1, []), seen(0, [])], [])


def test_classification_has_no_average_precision() -> None:
    columns = (
        PredictionColumns.from_rows([seen(0, [(LEFT, 0, 0.9)])]),
        ReferenceColumns.from_rows([true(0, [(LEFT, 0)])]),
    )
    classified = score_stream(*columns, NO_LABELS, decoded=1, class_count=CLASSES)
    assert (classified.accuracy, classified.ap50) == (1.0, None)


Stream = tuple[list[FramePrediction], list[FrameReference], LabelledBoxes, int]

boxes = st.tuples(st.integers(0, 6), st.integers(0, 3), st.integers(1, 6), st.integers(1, 4)).map(
    lambda v: (float(v[0]), float(v[1]), float(v[0] + v[2]), float(v[1] + v[3]))
)
objects = st.lists(st.tuples(boxes, st.integers(-2, CLASSES)), max_size=4)
detections = st.lists(
    st.tuples(boxes, st.integers(0, CLASSES), st.sampled_from([0.1, 0.5, 0.7, 0.9])), max_size=4
)


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    count = draw(st.integers(1, 8))
    kinds = st.sampled_from(["analysed", "analysed", "lost", "skipped"])
    predictions: list[FramePrediction] = []
    last, window = NOT_ANSWERED, 0
    for frame in range(count):
        window += draw(st.integers(0, 3)) == 0
        kind = draw(kinds)
        if kind == "analysed":
            last = frame
            predictions.append(seen(frame, draw(detections), window=window))
        elif kind == "skipped":
            predictions.append(seen(frame, [], by=last, window=window))
    reference = [true(frame, draw(objects)) for frame in range(count + 2) if draw(st.integers(0, 9)) > 0]
    return predictions, reference, labels_from(*draw(st.lists(st.integers(0, count), max_size=2))), count


def by_frames(
    predictions: list[FramePrediction], reference: list[FrameReference], labelled: LabelledBoxes, decoded: int
) -> tuple[dict[int, tuple[list[list[int]], float | None]], tuple[int, int, int]]:
    """The definition, frame by frame: window -> [counted, correct] by class and AP50; the other counts."""
    rows = {row.frame: row for row in predictions}
    cells = {row.window: [[0, 0] for _ in range(CLASSES)] for row in predictions}
    ranked: dict[tuple[int, int], list[tuple[float, bool]]] = {}
    missing: dict[tuple[int, int], int] = {}
    excluded = called = false_alarms = 0
    for there in reference:
        known = (there.classes >= 0) & (there.classes < CLASSES)
        if there.frame >= decoded:
            continue
        if there.frame in labelled.frame:
            excluded += int(known.sum())
            continue
        earlier = [row for row in predictions if row.frame <= there.frame]
        window = (earlier[-1:] or predictions[:1] or [seen(0, [])])[0].window
        own = rows.get(there.frame)
        answer = (rows.get(own.answered_by) if own else None) or seen(0, [])
        matches = match_image(
            answer.boxes,
            answer.classes,
            answer.confidence,
            there.boxes[known],
            there.classes[known],
            there.boxes[there.classes == DOUBTFUL],
        )
        for label in there.classes[known].tolist():
            cells.setdefault(window, [[0, 0] for _ in range(CLASSES)])[label][0] += 1
            missing[window, label] = missing.get((window, label), 0) + 1
        for label, confidence, hit, ignored in zip(
            answer.classes.tolist(), answer.confidence.tolist(), matches.hit, matches.ignored, strict=True
        ):
            if label >= CLASSES:
                continue
            sure = confidence >= 0.5
            mine = own is not None and own.analysed and sure
            called += mine
            if ignored:
                continue
            false_alarms += mine and not hit
            cells[window][label][0] += sure
            cells[window][label][1] += 2 * int(sure and hit)
            ranked.setdefault((window, label), []).append((confidence, bool(hit)))
    result: dict[int, tuple[list[list[int]], float | None]] = {}
    for window, counted in cells.items():
        present = [label for label in range(CLASSES) if (window, label) in missing]
        values = [one_ap(ranked.get((window, label), []), missing[window, label]) for label in present]
        nothing = [[0, 0] for _ in range(CLASSES)]
        result[window] = (counted, sum(values) / len(values)) if values else (nothing, None)
    return result, (excluded, called, false_alarms)


def one_ap(ranked: list[tuple[float, bool]], count: int) -> float:
    confidence = np.array([value for value, _ in ranked], np.float32)
    hit = np.array([value for _, value in ranked], np.bool_)
    return float(average_precisions(np.array([count]), np.zeros(len(hit), np.int64), confidence, hit)[0])


@settings(max_examples=100)
@given(streams())
def test_score_of_random_stream_equals_that_of_its_frames(drawn: Stream) -> None:
    result = score(*drawn)
    expected, others = by_frames(*drawn)
    found = {
        w.index: ([list(pair) for pair in zip(w.counted_by_class, w.correct_by_class, strict=True)], w.ap50)
        for w in result.windows
    }
    assert found == {
        window: (cells, ap50 and pytest.approx(ap50)) for window, (cells, ap50) in expected.items()
    }
    assert (result.excluded_objects, result.called_objects, result.false_alarms) == others
    assert result.series.counted.sum() == sum(w.counted for w in result.windows)
    assert result.series.correct.sum() == sum(w.correct for w in result.windows)


@settings(max_examples=40)
@given(streams(), st.lists(boxes, min_size=1, max_size=3))
def test_doubtful_boxes_never_lower_the_score(drawn: Stream, doubtful: list[Box]) -> None:
    predictions, reference, labelled, decoded = drawn
    more = [with_more(row, *((box, DOUBTFUL) for box in doubtful)) for row in reference]
    before, after = score(*drawn), score(predictions, more, labelled, decoded)
    for old, new in zip(before.windows, after.windows, strict=True):
        assert new.correct_by_class == old.correct_by_class
        assert (new.accuracy is None) == (old.accuracy is None)
        if old.accuracy is not None:
            assert new.accuracy >= old.accuracy
            assert new.ap50 >= old.ap50
    assert after.false_alarms <= before.false_alarms


@settings(max_examples=40)
@given(st.integers(0, 10**6))
def test_order_of_boxes_does_not_matter(seed: int) -> None:
    rng = np.random.default_rng(seed)
    predictions, reference, shuffled, others = [], [], [], []
    for frame in range(4):
        there = crowd(rng, 5)
        guesses = there[rng.integers(0, 5, 8)] + rng.normal(0, 1.5, (8, 4)).astype(np.float32)
        classes = rng.integers(-1, CLASSES, 5).astype(np.int16)
        row = replace(
            seen(frame, []),
            boxes=guesses,
            classes=rng.integers(0, CLASSES, 8).astype(np.int16),
            confidence=rng.random(8).astype(np.float32),
        )
        reference.append(FrameReference(frame, frame, there, classes, np.arange(5)))
        predictions.append(row)
        new, other = rng.permutation(8), rng.permutation(5)
        shuffled.append(
            replace(row, boxes=row.boxes[new], classes=row.classes[new], confidence=row.confidence[new])
        )
        others.append(FrameReference(frame, frame, there[other], classes[other], other))
    before, after = score(predictions, reference), score(shuffled, others)
    assert after.windows == before.windows
    assert (after.called_objects, after.false_alarms) == (before.called_objects, before.false_alarms)


def crowd(rng: np.random.Generator, count: int, side: float = 20.0) -> NDArray[np.float32]:
    """Returns (count, 4) boxes of 8 to 12 pixels in a square."""
    corner = rng.uniform(0, side, (count, 2))
    return np.concatenate([corner, corner + rng.uniform(8, 12, (count, 2))], axis=1).astype(np.float32)


def test_score_of_long_stream_calls_nothing_for_each_frame() -> None:
    score_steady_stream(100)  # makes what is made once
    assert calls_of(score_steady_stream, 20_000) < 2 * calls_of(score_steady_stream, 2_000)


def score_steady_stream(frames):
    columns = steady_stream(frames, crowd(np.random.default_rng(0), 10 * frames, side=200.0))
    result = score_detections(*columns, decoded=frames, class_count=CLASSES)
    assert (result.accuracy, result.ap50) == (1.0, 1.0)


# The average precision of one class.


def average_precision(ranked: list[bool], objects: int) -> float:
    """Returns that of predictions in falling confidence."""
    confidence = np.linspace(1, 0, len(ranked), dtype=np.float32)
    group = np.zeros(len(ranked), np.int64)
    return float(average_precisions(np.array([objects]), group, confidence, np.array(ranked, np.bool_))[0])


def test_average_precision_of_three_predictions() -> None:
    # Recall 1/2 at precision 1 (51 of the 101 recalls), recall 1 at precision 2/3 (the other 50).
    assert average_precision([True, False, True], 2) == pytest.approx((51 + 50 * 2 / 3) / 101)


def test_missed_objects_cost_their_part_of_the_recalls() -> None:
    assert average_precision([True, True], 3) == pytest.approx(67 / 101)
    assert average_precision([], 3) == 0.0


def test_precision_is_the_best_from_a_recall_on() -> None:
    assert average_precision([False, True, True], 2) == pytest.approx(2 / 3)


def test_groups_are_ranked_apart_and_one_without_objects_has_none() -> None:
    found = average_precisions(
        np.array([1, 0, 2]),
        np.array([2, 0, 1, 0, 2]),
        np.array([0.2, 0.3, 0.9, 0.8, 0.1], np.float32),
        np.array([True, True, False, False, True]),
    )
    np.testing.assert_allclose(found, [0.5, np.nan, 1.0])


def test_equal_confidences_rank_in_their_order() -> None:
    same = np.full(2, 0.5, np.float32)
    group = np.zeros(2, np.int64)
    first = average_precisions(np.array([1]), group, same, np.array([True, False]))
    second = average_precisions(np.array([1]), group, same, np.array([False, True]))
    assert (first[0], second[0]) == (1.0, 0.5)


@given(st.lists(st.booleans(), max_size=20), st.integers(0, 120))
def test_average_precision_equals_definition(ranked: list[bool], missed: int) -> None:
    objects = sum(ranked) + missed
    if not objects:
        return
    points = [(sum(ranked[:end]), end) for end in range(1, len(ranked) + 1)]
    best = [
        max((hits / end for hits, end in points if 100 * hits >= k * objects), default=0.0)
        for k in range(101)
    ]
    assert average_precision(ranked, objects) == pytest.approx(sum(best) / 101)
