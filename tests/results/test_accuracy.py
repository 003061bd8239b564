import frame_rows
import numpy as np
import pytest
from counting import calls_of
from frame_rows import CLASSES, FAR, LEFT, NEAR, Item, steady_stream, true
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

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

BACKGROUND = 2
MOVED = (4.0, 0.0, 14.0, 10.0)  # IoU with LEFT is 6 / 14


def seen(frame: int, items: list[Item], **more: int | None) -> FramePrediction:
    """Returns a row of a classifier's answers."""
    return frame_rows.seen(frame, [(box, label, 1.0) for box, label in items], **more)


def score(
    predictions: list[FramePrediction],
    reference: list[FrameReference],
    labelled: LabelledBoxes = NO_LABELS,
    decoded: int | None = None,
) -> StreamScore:
    return score_stream(
        PredictionColumns.from_rows(predictions),
        ReferenceColumns.from_rows(reference),
        labelled,
        decoded=len(reference) if decoded is None else decoded,
        class_count=CLASSES,
        background=BACKGROUND,
    )


def test_score_skipped_frame_loses_moved_new_and_gone_objects() -> None:
    result = score(
        [seen(0, [(LEFT, 0)]), seen(1, [], by=0), seen(2, [], by=0), seen(3, [], by=0)],
        [
            true(0, [(LEFT, 0)], [1]),
            true(1, [(NEAR, 0)], [1]),  # still overlaps by more than half
            true(2, [(MOVED, 0)], [1]),  # moved too far
            true(3, [(MOVED, 0), (FAR, 0)], [1, 2]),  # and a new object appeared
        ],
    )
    assert (result.windows[0].counted, result.windows[0].correct) == (5, 2)
    assert (result.frames.analysed, result.frames.skipped, result.frames.lost) == (1, 3, 0)
    assert result.series.start_us.tolist() == [0, 1_000_000]
    assert result.series.counted.tolist() == [3, 2]
    assert result.series.correct.tolist() == [2, 0]


def test_score_before_first_analysed_frame_is_zero() -> None:
    result = score(
        [seen(0, [], by=NOT_ANSWERED), seen(1, [(LEFT, 0)])],
        [true(0, [(LEFT, 0)], [1]), true(1, [(LEFT, 0)], [1])],
    )
    assert result.accuracy == 0.5


def test_score_several_boxes_one_right_class_suffices() -> None:
    result = score(
        [seen(0, [(LEFT, 1), (NEAR, 0)]), seen(1, [(LEFT, 1)])],
        [true(0, [(LEFT, 0)], [1]), true(1, [(LEFT, 0)], [1])],
    )
    assert (result.windows[0].counted, result.windows[0].correct) == (2, 1)


def test_score_labelled_object_counts_in_no_window() -> None:
    labelled = LabelledBoxes(np.array([1, 7]), np.array([NEAR, LEFT], np.float32))
    result = score(
        [seen(0, [(FAR, 1)]), seen(1, [(LEFT, 0)]), seen(2, [(FAR, 1)], window=1)],
        [
            true(0, [(LEFT, 0), (FAR, 1)], [1, 2]),
            true(1, [(LEFT, 0)], [1]),
            true(2, [(FAR, 1), (LEFT, 0)], [2, 1]),
        ],
        labelled,
    )
    assert [(w.counted, w.correct) for w in result.windows] == [(1, 1), (1, 1)]
    assert result.excluded_objects == 3


def test_score_label_excludes_best_overlapping_object() -> None:
    box = (1.0, 0.0, 11.0, 10.0)
    labelled = LabelledBoxes(np.array([0]), np.array([box], np.float32))
    result = score([seen(0, [(LEFT, 0)])], [true(0, [(LEFT, 0), (NEAR, 1)], [1, 2])], labelled)
    assert result.windows[0].counted_by_class == (0, 1, 0)


def test_balanced_accuracy_weighs_occurring_classes_equally() -> None:
    frames = 19
    result = score(
        [seen(i, [(LEFT, 0)]) for i in range(frames + 1)],
        [*(true(i, [(LEFT, 0)], [i]) for i in range(frames)), true(frames, [(LEFT, 1)], [99])],
    )
    assert result.accuracy == 0.95
    assert result.balanced_accuracy == 0.5


def test_score_lost_frame_is_counted_as_wrong() -> None:
    result = score(
        [seen(0, [(LEFT, 0)]), seen(2, [(LEFT, 0)], window=1)],
        [true(i, [(LEFT, 0)], [1]) for i in range(9)],
        decoded=4,
    )
    assert result.frames.lost == 2
    assert [(w.index, w.counted, w.correct) for w in result.windows] == [(0, 2, 1), (1, 2, 1)]


def test_score_empty_window_is_left_out_of_mean() -> None:
    result = score(
        [seen(0, [(LEFT, 0)]), seen(1, [], window=1)], [true(0, [(LEFT, 0)], [1]), true(1, [], [])]
    )
    assert [window.accuracy for window in result.windows] == [1.0, None]
    assert result.accuracy == 1.0
    nothing = score([], [], decoded=3)
    assert (nothing.accuracy, nothing.balanced_accuracy, nothing.frames.lost) == (None, None, 3)


def test_false_alarms_are_named_boxes_without_object() -> None:
    result = score(
        [seen(0, [(LEFT, 1), (FAR, 1), (FAR, BACKGROUND)]), seen(1, [], by=0)],
        [true(0, [(LEFT, 0)], [1]), true(1, [], [])],
    )
    assert (result.called_objects, result.false_alarms) == (3, 1)


def test_score_future_answers_or_disorder_raises() -> None:
    with pytest.raises(ValueError, match="later"):
        score([seen(0, [], by=1), seen(1, [])], [])
    with pytest.raises(ValueError, match="rise"):
        score([seen(1, []), seen(0, [])], [])


def plain_iou(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    ax0, ay0, ax1, ay1 = map(float, a)
    bx0, by0, bx1, by1 = map(float, b)
    inter = max(0.0, min(ax1, bx1) - max(ax0, bx0)) * max(0.0, min(ay1, by1) - max(ay0, by0))
    union = (ax1 - ax0) * (ay1 - ay0) + (bx1 - bx0) * (by1 - by0) - inter
    return inter / union if union else 0.0


def by_loops(
    predictions: list[FramePrediction], reference: list[FrameReference], labelled: LabelledBoxes, decoded: int
) -> dict[int, list[list[int]]]:
    """The definition of accuracy, object by object: window -> class -> [counted, correct]."""
    rows = {row.frame: row for row in predictions}
    truth = {row.frame: row for row in reference}
    out_of_it: set[int] = set()
    for frame, box in zip(labelled.frame.tolist(), labelled.boxes, strict=True):
        there = truth.get(frame)
        overlaps = [plain_iou(box, other) for other in there.boxes] if there else []
        if there and overlaps and max(overlaps) >= 0.5:
            out_of_it.add(int(there.tracks[overlaps.index(max(overlaps))]))
    result: dict[int, list[list[int]]] = {row.window: [[0, 0] for _ in range(CLASSES)] for row in predictions}
    for row in reference:
        earlier = [r for r in predictions if r.frame <= row.frame] or predictions
        window = (earlier[-1] if earlier[0].frame <= row.frame else earlier[0]).window if earlier else 0
        own = rows.get(row.frame)
        answer = rows.get(own.answered_by) if own else None
        for box, label, track in zip(row.boxes, row.classes.tolist(), row.tracks.tolist(), strict=True):
            if track in out_of_it or row.frame >= decoded:
                continue
            cell = result.setdefault(window, [[0, 0] for _ in range(CLASSES)])[label]
            cell[0] += 1
            if answer and any(
                said == label and plain_iou(box, other) >= 0.5
                for other, said in zip(answer.boxes, answer.classes.tolist(), strict=True)
            ):
                cell[1] += 1
    return result


items = st.lists(
    st.tuples(
        st.tuples(st.integers(0, 6), st.integers(0, 3), st.integers(1, 6), st.integers(1, 4)).map(
            lambda v: (float(v[0]), float(v[1]), float(v[0] + v[2]), float(v[1] + v[3]))
        ),
        st.integers(0, CLASSES - 1),
    ),
    max_size=4,
)


@st.composite
def streams(
    draw: st.DrawFn,
) -> tuple[list[FramePrediction], list[FrameReference], LabelledBoxes, int]:
    count = draw(st.integers(0, 8))
    predictions: list[FramePrediction] = []
    last, window = NOT_ANSWERED, 0
    for frame in range(count):
        window += draw(st.booleans())
        kind = draw(st.sampled_from(["analysed", "analysed", "skipped", "lost"]))
        if kind == "analysed":
            last = frame
            predictions.append(seen(frame, draw(items), window=window))
        elif kind == "skipped":
            predictions.append(seen(frame, [], by=last, window=window))
    reference = []
    for frame in range(count + 2):
        objects = draw(items)
        tracks = draw(st.permutations(range(6)))[: len(objects)]
        if draw(st.integers(0, 9)) > 0:
            reference.append(true(frame, objects, list(tracks)))
    labels = [
        (f, box) for f in draw(st.lists(st.integers(0, count + 2), max_size=2)) for box, _ in draw(items)
    ]
    labelled = LabelledBoxes(
        np.array([f for f, _ in labels], np.int64),
        np.array([b for _, b in labels], np.float32).reshape(-1, 4),
    )
    return predictions, reference, labelled, count


@given(streams())
@settings(max_examples=60, deadline=None)
def test_score_random_stream_equals_definition(
    drawn: tuple[list[FramePrediction], list[FrameReference], LabelledBoxes, int],
) -> None:
    predictions, reference, labelled, decoded = drawn
    result = score(predictions, reference, labelled, decoded)
    expected = by_loops(predictions, reference, labelled, decoded)
    found = {
        w.index: [list(pair) for pair in zip(w.counted_by_class, w.correct_by_class, strict=True)]
        for w in result.windows
    }
    assert found == expected
    assert result.frames.analysed + result.frames.skipped + result.frames.lost == decoded
    assert result.series.counted.sum() == sum(w.counted for w in result.windows)
    assert result.series.correct.sum() == sum(w.correct for w in result.windows)


def test_score_long_stream_calls_nothing_for_each_frame() -> None:
    score_steady_stream(100)  # makes what is made once
    assert calls_of(score_steady_stream, 20_000) < 2 * calls_of(score_steady_stream, 2_000)


def score_steady_stream(frames):
    corners = np.random.default_rng(0).uniform(0, 600, (8 * frames, 2)).astype(np.float32)
    columns = steady_stream(frames, np.concatenate([corners, corners + 40], axis=1))
    result = score_stream(*columns, decoded=frames, class_count=CLASSES)
    assert result.accuracy == 1.0
