"""Suppression and coverage of boxes, and what a foreign network answers, made sound and distinct.

Boxes are x0 y0 x1 y1 in pixels, as in ``ekya.core.objects``.
"""

import numpy as np
from numpy.typing import NDArray

from ekya.core.objects import iou_matrix
from ekya.models.golden.detections import Detections

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


def covered_part(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
    """Returns (N, M), the fraction of each box of ``a`` that lies in each box of ``b``; 0 for empty boxes."""
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, 2:], b[None, :, 2:])
    shared = np.prod(np.clip(high - low, 0.0, None), axis=2)
    area = np.prod(np.clip(a[:, 2:] - a[:, :2], 0.0, None), axis=1)[:, None]
    part = np.divide(shared, area, out=np.zeros_like(shared), where=area > 0)
    return np.asarray(part, dtype=np.float32)


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
    best = found.take(rows[np.argsort(-found.scores[rows], kind="stable")[:_MOST_CANDIDATES]])
    # Before boxes are clipped, which makes different ones equal.
    _, first = np.unique(best.boxes, axis=0, return_index=True)
    one_each = best.take(np.sort(first))
    boxes = np.clip(one_each.boxes, 0.0, [width, height, width, height]).astype(np.float32)
    sound = Detections(boxes, one_each.classes, np.clip(one_each.scores, 0.0, 1.0).astype(np.float32))
    sound = sound.take((boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1]))
    return sound.take(nms(sound.boxes, sound.scores, sound.classes, max_iou)[:MOST_BOXES])
