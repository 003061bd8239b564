"""What is left of a golden detector's boxes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ekya.core.objects import iou_matrix
from ekya.models.golden.detections import Detections, nms, suppressed

WIDTH, HEIGHT = 80, 40
BOX = (10.0, 5.0, 30.0, 25.0)
INF, NAN = float("inf"), float("nan")


def kept(*rows: tuple[tuple[float, ...], int, float], min_score: float = 0.5) -> Detections:
    """Returns what is left of (box, class of three, score)."""
    boxes, classes, scores = zip(*rows, strict=True)
    found = Detections(np.array(boxes, np.float32), np.array(classes), np.array(scores, np.float32))
    return suppressed(found, WIDTH, HEIGHT, 3, min_score, 0.7)


@pytest.mark.parametrize(
    ("box", "of_class", "score"),
    [
        (BOX, 1, NAN),
        (BOX, 1, INF),
        (BOX, 1, 0.4),
        (BOX, -1, 0.9),
        (BOX, 3, 0.9),
        ((NAN, 5, 30, 25), 1, 0.9),
        ((10, 5, INF, 25), 1, 0.9),
        ((10, -INF, 30, 25), 1, 0.9),
        ((30, 5, 10, 25), 1, 0.9),
        ((10, 25, 30, 5), 1, 0.9),
        ((10, 5, 10, 25), 1, 0.9),
        ((-30, 5, -10, 25), 1, 0.9),
        ((10, 41, 30, 60), 1, 0.9),
    ],
)
def test_suppression_leaves_out_what_is_no_detection(
    box: tuple[float, ...], of_class: int, score: float
) -> None:
    assert len(kept((box, of_class, score)).boxes) == 0
    both = kept((box, of_class, score), (BOX, 2, 0.6))
    assert both.classes.tolist() == [2], "and it hides no other"


def test_suppression_clips_boxes_and_scores() -> None:
    found = kept(((-3e38, -7.0, 1e30, 20.0), 0, 3.5))
    assert found.boxes.tolist() == [[0.0, 0.0, WIDTH, 20.0]]
    assert found.scores.tolist() == [1.0]


def test_suppression_compares_boxes_of_one_class() -> None:
    near, apart = (10.0, 5.0, 30.0, 24.0), (10.0, 5.0, 30.0, 15.0)
    other = (10.0, 5.0, 30.0, 23.0)
    found = kept((apart, 0, 0.6), (BOX, 0, 0.9), (near, 0, 0.8), (other, 1, 0.7))
    assert found.classes.tolist() == [0, 1, 0]
    np.testing.assert_allclose(found.scores, [0.9, 0.7, 0.6])


def test_suppression_gives_a_box_its_best_class_only() -> None:
    assert kept((BOX, 0, 0.7), (BOX, 1, 0.9), (BOX, 2, 0.8)).classes.tolist() == [1]
    # Two boxes that become one only when they are clipped are two objects.
    assert len(kept(((60, 5, 90, 25), 0, 0.7), ((60, 5, 95, 25), 1, 0.9)).boxes) == 2


def test_suppression_of_nothing_is_nothing() -> None:
    empty = Detections(np.zeros((0, 4), np.float32), np.zeros(0, np.int64), np.zeros(0, np.float32))
    assert suppressed(empty, WIDTH, HEIGHT, 3, 0.5, 0.7).boxes.shape == (0, 4)


corners = arrays(
    np.float32, st.tuples(st.integers(0, 12), st.just(4)), elements=st.integers(0, 30).map(float)
)


def boxes_from(corner: np.ndarray) -> np.ndarray:
    low = corner[:, :2]
    return np.concatenate([low, low + corner[:, 2:] + 1], axis=1).astype(np.float32)


@given(corners, st.integers(0, 10_000), st.floats(0.1, 0.9))
def test_nms_drops_exactly_boxes_under_better_ones(corner: np.ndarray, seed: int, limit: float) -> None:
    boxes = boxes_from(corner)
    rng = np.random.default_rng(seed)
    scores = rng.random(len(boxes)).astype(np.float32)
    classes = rng.integers(0, 3, len(boxes))
    overlap = iou_matrix(boxes, boxes)
    kept = nms(boxes, scores, classes, limit)
    assert (np.diff(scores[kept]) <= 0).all()
    for row in range(len(boxes)):
        rivals = [k for k in kept if k != row and classes[k] == classes[row] and overlap[k, row] > limit]
        if row in kept:
            assert not rivals
        else:
            assert any(scores[k] >= scores[row] for k in rivals)


def test_nms_without_classes_compares_all_boxes() -> None:
    boxes = np.array([[0, 0, 10, 10], [0, 0, 10, 10]], dtype=np.float32)
    scores = np.array([0.5, 0.9], dtype=np.float32)
    assert nms(boxes, scores, np.array([0, 1]), 0.5).tolist() == [1, 0]
    assert nms(boxes, scores, None, 0.5).tolist() == [1]
