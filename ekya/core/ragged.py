"""Rows of items: all items are in one array, and ``offsets[i]:offsets[i + 1]`` are those of row i."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

_PAIRS_AT_ONCE = 500_000


def iterate_pairs(
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


def items_of(first: NDArray[np.int64], count: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the items of all spans, one span after the other: (sum of ``count``,)."""
    ends = np.cumsum(count)
    items: NDArray[np.int64] = np.arange(int(count.sum())) + np.repeat(first - (ends - count), count)
    return items


def offsets_of(count: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the (rows + 1,) offsets of rows with these numbers of items."""
    return np.concatenate([[0], np.cumsum(count)]).astype(np.int64)
