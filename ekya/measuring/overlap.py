"""Overlaps of boxes over all frames of a stream."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

SAME_OBJECT_IOU = 0.5
"""Minimum IoU of two boxes of the same object."""

_PAIRS_AT_ONCE = 500_000


def pairs(
    first: NDArray[np.int64], count: NDArray[np.int64]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yields all pairs of a left item and each of its right items, some hundred thousand at a time.

    The pairs of one left item are always in one batch.

    Args:
        first: (L,) index of each left item's first right item.
        count: (L,) number of its right items, which are consecutive.

    Yields:
        (left, right), each (P,), sorted by left and then by right.
    """
    ends = np.cumsum(count)
    begin = 0
    while begin < len(count):
        done = ends[begin - 1] if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, done + _PAIRS_AT_ONCE, side="right")))
        counts = count[begin:end]
        left = np.repeat(np.arange(begin, end), counts)
        within = np.arange(len(left)) - np.repeat(np.cumsum(counts) - counts, counts)
        yield left, np.repeat(first[begin:end], counts) + within
        begin = end


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


def rows_of(wanted: NDArray[np.int64], frames: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the position of each wanted frame in ``frames``, which rises strictly; -1 if it is absent."""
    if len(frames) == 0:
        return np.full(len(wanted), -1, np.int64)
    at = np.minimum(np.searchsorted(frames, wanted), len(frames) - 1)
    return np.where(frames[at] == wanted, at, -1)


def spans_of(
    rows: NDArray[np.int64], offsets: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the first item and number of items of each row, the arguments of ``pairs``; 0 for row -1."""
    known = rows >= 0
    safe = np.where(known, rows, 0)
    if len(offsets) == 1:
        return np.zeros_like(rows), np.zeros_like(rows)
    return np.where(known, offsets[safe], 0), np.where(known, offsets[safe + 1] - offsets[safe], 0)


def _area(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    area: NDArray[np.float64] = np.prod(np.maximum(boxes[:, 2:] - boxes[:, :2], 0.0), axis=1)
    return area
