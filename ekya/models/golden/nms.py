"""Suppression and coverage of boxes.

Boxes are x0 y0 x1 y1 in pixels, as in ``ekya.core.objects``.
"""

import numpy as np
from numpy.typing import NDArray

from ekya.core.objects import iou_matrix


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
