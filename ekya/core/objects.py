"""Bounding boxes, x0 y0 x1 y1 in pixels with x1 and y1 exclusive, and classes with a special meaning."""

import numpy as np
from numpy.typing import NDArray


def iou_matrix(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
    """Returns the intersection over union of every box of ``a`` (N, 4) and of ``b`` (M, 4): (N, M).

    Empty boxes overlap nothing.
    """
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, 2:], b[None, :, 2:])
    overlap = np.prod(np.clip(high - low, 0.0, None), axis=2)
    area_a = np.prod(np.clip(a[:, 2:] - a[:, :2], 0.0, None), axis=1)
    area_b = np.prod(np.clip(b[:, 2:] - b[:, :2], 0.0, None), axis=1)
    union = area_a[:, None] + area_b[None, :] - overlap
    iou: NDArray[np.float32] = np.divide(overlap, union, out=np.zeros_like(overlap), where=union > 0)
    return iou.astype(np.float32)


BACKGROUND = "background"
"""A fleet's last class where its golden model detects objects itself: a crop without a relevant object.

No data set has boxes of this class.
"""
