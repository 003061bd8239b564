"""Bounding boxes, x0 y0 x1 y1 in pixels with x1 and y1 exclusive, and classes with a special meaning."""

import numpy as np
from numpy.typing import NDArray

SAME_OBJECT_IOU = 0.5
"""Minimum IoU of two boxes of the same object."""


def iou_matrix(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
    """Returns the intersection over union of every box of ``a`` (N, 4) and of ``b`` (M, 4): (N, M).

    Empty boxes overlap nothing.
    """
    overlap = _overlap(a, b, 0) * _overlap(a, b, 1)
    area_a, area_b = _extent(a, 0) * _extent(a, 1), _extent(b, 0) * _extent(b, 1)
    union = area_a[:, None] + area_b[None, :] - overlap
    ratio: NDArray[np.float32] = np.divide(overlap, union, out=np.zeros_like(overlap), where=union > 0)
    return ratio.astype(np.float32)


def _overlap(a: NDArray[np.float32], b: NDArray[np.float32], axis: int) -> NDArray[np.float32]:
    """Returns (N, M), the length that every two boxes share along an axis; plane by plane, which is fast."""
    low = np.maximum(a[:, None, axis], b[None, :, axis])
    high = np.minimum(a[:, None, axis + 2], b[None, :, axis + 2])
    shared: NDArray[np.float32] = np.maximum(high - low, 0.0)
    return shared


def _extent(boxes: NDArray[np.float32], axis: int) -> NDArray[np.float32]:
    length: NDArray[np.float32] = np.maximum(boxes[:, axis + 2] - boxes[:, axis], 0.0)
    return length


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


def _area(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    area: NDArray[np.float64] = np.prod(np.maximum(boxes[:, 2:] - boxes[:, :2], 0.0), axis=1)
    return area


BACKGROUND = "background"
"""A fleet's last class where its golden model detects objects itself: a crop without a relevant object.

No data set has boxes of this class.
"""

DOUBTFUL = -1
"""Class of a reference box that the golden model half believes in: no object, and no mistake to detect it."""
