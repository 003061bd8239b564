"""Weights of a window's labels in accuracy measurements: one vote per object, more for late labels.

A window's accuracy is measured to predict the next window. So an object counts once, however long it stayed,
and if the scene changed while labels were taken, those of the later half count more (``weights_now``).
"""

import numpy as np
from numpy.typing import NDArray

from ekya.models.training.labelled import LabelledCrops


def few_of_each(classes: NDArray[np.int64], tracks: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Returns positions of at most ``most`` crops of each object and class, evenly spread, in order.

    The last crop is always included: it is nearest to the next window.

    Args:
        classes: (N,) of each crop.
        tracks: (N,) object of each crop; crops of one object are in the order of time.
        most: maximum number of crops of one object with one class.
    """
    order = np.lexsort((tracks, classes))
    begins = np.flatnonzero(np.diff(classes[order], prepend=-1) | np.diff(tracks[order], prepend=-1))
    kept = [
        members[np.linspace(len(members) - 1, 0, min(most, len(members))).round().astype(np.int64)]
        for members in np.split(order, begins[1:])
    ]
    return np.sort(np.concatenate(kept))


def weights_now(
    labelled: LabelledCrops, tried: NDArray[np.int64], right: NDArray[np.bool_], background: int | None
) -> NDArray[np.float64]:
    """Returns the weights of tried crops for the accuracy on the scene at the end of the window.

    The accuracies of the serving model on the earlier and on the later half show whether the scene changed:
    with d their difference, and v the variance of d if it did not, the later half alone has a share of
    d² / (d² + v) in the weights, and the whole window the rest.

    Args:
        labelled: all labels of the window.
        tried: (N,) positions of the crops that are measured on.
        right: (N,) which of them the serving model gets right.
        background: a class that does not count; None if there is none.

    Returns:
        (N,) that sum to 1, or zeros if nothing counts.
    """
    every = weights_by_object(labelled.classes, labelled.tracks, background, tried)
    later = labelled.t_us > np.median(labelled.t_us)
    halves = [_of_part(labelled, tried, half, background) for half in (~later, later)]
    if not all(weights.any() for weights in halves):
        return every
    tracks = labelled.tracks[tried]
    sure = 1.0 / sum(1.0 / independent_crops(weights, tracks) for weights in halves)
    mean = float(np.clip(every @ right, 1.0 / (sure + 2.0), 1.0 - 1.0 / (sure + 2.0)))
    changed = float((halves[1] - halves[0]) @ right) ** 2
    alone = changed / (changed + mean * (1.0 - mean) / sure)
    return (1.0 - alone) * every + alone * halves[1]


def _of_part(
    labelled: LabelledCrops, tried: NDArray[np.int64], part: NDArray[np.bool_], background: int | None
) -> NDArray[np.float64]:
    """Returns the weights by object within one part of the labels, zero outside it; they sum to 1."""
    weights = np.zeros(len(tried))
    within = part[tried]
    places = np.cumsum(part) - 1
    of = weights_by_object(labelled.classes[part], labelled.tracks[part], background, places[tried[within]])
    weights[within] = of / of.sum() if of.any() else of
    return weights


def independent_crops(weights: NDArray[np.float64], tracks: NDArray[np.int64]) -> int:
    """Returns the effective number of independent crops: 1 / Σ (object's weight)².

    Args:
        weights: (N,) weight of each crop; they sum to 1.
        tracks: (N,) object of each crop.
    """
    _, of = np.unique(tracks, return_inverse=True)
    return max(1, round(1.0 / float((np.bincount(of, weights=weights) ** 2).sum())))


def weights_by_object(
    classes: NDArray[np.int64],
    tracks: NDArray[np.int64],
    background: int | None,
    of: NDArray[np.int64] | None = None,
) -> NDArray[np.float64]:
    """Returns the weight of each crop, given that crops of one object are right or wrong together.

    A class counts by its crops, as it does in a window; within a class all objects count equally, since the
    one that stayed longest is absent from the next window.

    Args:
        classes: (N,) of each crop.
        tracks: (N,) object of each crop.
        background: a class that does not count; None if there is none.
        of: positions of the crops that represent all; None for all.

    Returns:
        (N,), or one weight per position; they sum to 1, less the part of classes without a position.
    """
    standing = np.arange(len(classes)) if of is None else of
    weights = np.zeros(len(standing))
    counts = classes != background
    for index in np.unique(classes[counts]):
        members = np.flatnonzero(classes[standing] == index)
        _, place, crops = np.unique(tracks[standing[members]], return_inverse=True, return_counts=True)
        weights[members] = (classes == index).sum() / counts.sum() / len(crops) / crops[place]
    return weights


def folds_of_tracks(tracks: NDArray[np.int64], folds: int, seed: int) -> list[NDArray[np.bool_]]:
    """Assigns crops to folds: each is held out in one fold, with all crops of its object.

    Args:
        tracks: (N,) object of each crop.
        folds: number of folds; fewer if there are fewer objects.
        seed: of the assignment of objects.

    Returns:
        For each fold (N,) bool: which crops are held out.
    """
    drawn = np.random.default_rng((seed, folds)).permutation(np.unique(tracks))
    return [np.isin(tracks, drawn[first::folds]) for first in range(min(folds, len(drawn)))]
