import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ekya.core.objects import iou_matrix
from ekya.models.golden.boxes import covered_part, match, nms

corners = arrays(
    np.float32, st.tuples(st.integers(0, 12), st.just(4)), elements=st.integers(0, 30).map(float)
)


def boxes_from(corner: np.ndarray) -> np.ndarray:
    low = corner[:, :2]
    return np.concatenate([low, low + corner[:, 2:] + 1], axis=1).astype(np.float32)


@given(corners, st.integers(0, 10_000), st.floats(0.1, 0.9))
def test_nms_keeps_no_rivals_and_drops_only_what_a_better_box_covers(
    corner: np.ndarray, seed: int, limit: float
) -> None:
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


def test_nms_without_classes_lets_all_boxes_compete() -> None:
    boxes = np.array([[0, 0, 10, 10], [0, 0, 10, 10]], dtype=np.float32)
    scores = np.array([0.5, 0.9], dtype=np.float32)
    assert nms(boxes, scores, np.array([0, 1]), 0.5).tolist() == [1, 0]
    assert nms(boxes, scores, None, 0.5).tolist() == [1]


@given(corners, corners, st.floats(0.1, 0.9))
def test_a_match_pairs_each_box_once_and_leaves_no_better_pair(
    a_corner: np.ndarray, b_corner: np.ndarray, limit: float
) -> None:
    a, b = boxes_from(a_corner), boxes_from(b_corner)
    partners = match(a, b, limit)
    overlap = iou_matrix(a, b)
    used = partners[partners >= 0]
    assert len(set(used.tolist())) == len(used)
    for row in range(len(a)):
        mine = overlap[row, partners[row]] if partners[row] >= 0 else 0.0
        assert partners[row] < 0 or mine >= limit
        for column in range(len(b)):
            theirs = max((overlap[r, column] for r in np.flatnonzero(partners == column)), default=0.0)
            if overlap[row, column] >= limit:
                assert overlap[row, column] <= max(mine, theirs), "both would rather have each other"


def test_the_covered_part_is_of_the_first_box() -> None:
    small, large = np.array([[2, 2, 4, 4]], np.float32), np.array([[0, 0, 8, 4]], np.float32)
    assert covered_part(small, large).tolist() == [[1.0]]
    assert covered_part(large, small).tolist() == [[0.125]]
