import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ekya.core.objects import iou_matrix
from ekya.models.golden.detections import covered_part, nms

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


def test_covered_part_is_of_the_first_box() -> None:
    small, large = np.array([[2, 2, 4, 4]], np.float32), np.array([[0, 0, 8, 4]], np.float32)
    assert covered_part(small, large).tolist() == [[1.0]]
    assert covered_part(large, small).tolist() == [[0.125]]
