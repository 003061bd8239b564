"""Computes average precision as COCO does: the mean, over 101 recalls, of the best precision from each on."""

import numpy as np
from numpy.typing import NDArray

_RECALLS = 101


def average_precisions(
    objects: NDArray[np.int64],
    group: NDArray[np.int64],
    confidence: NDArray[np.float32],
    hit: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """Returns the (G,) average precision of each group, for example a class; NaN for one without objects.

    Args:
        objects: (G,) number of objects of each group.
        group: (N,) index of the group that each prediction belongs to. Ignored predictions are left out.
        confidence: (N,); predictions of equal confidence rank in their order.
        hit: (N,) whether the prediction matched an object.
    """
    order = np.lexsort((-confidence, group))
    ends = np.searchsorted(group[order], np.arange(len(objects) + 1))
    result = np.full(len(objects), np.nan)
    for index in np.flatnonzero(objects):
        result[index] = _average_precision(hit[order[ends[index] : ends[index + 1]]], int(objects[index]))
    return result


def _average_precision(hit: NDArray[np.bool_], objects: int) -> float:
    """Returns the average precision of predictions in falling confidence."""
    rank_of_hit = np.flatnonzero(hit) + 1
    precision = np.arange(1, len(rank_of_hit) + 1) / rank_of_hit
    best = np.maximum.accumulate(precision[::-1])[::-1]
    # Hits needed for a recall of k hundredths, in whole numbers: no rounding decides.
    needed = np.maximum((np.arange(_RECALLS) * objects + _RECALLS - 2) // (_RECALLS - 1), 1)
    reached = needed[needed <= len(best)]
    return float(best[reached - 1].sum() / _RECALLS)
