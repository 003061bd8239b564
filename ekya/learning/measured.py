"""What labels of a window are worth as a measurement: crops of one object tell one thing, and late ones more.

A window's accuracy is wanted for what comes next. So an object counts once, however long it stayed, and
where the scene changed while labels were taken, those of its later half count more (``weights_now``).
"""

import numpy as np
from numpy.typing import NDArray

from ekya.learning.labelled import LabelledCrops


def few_of_each(classes: NDArray[np.int64], tracks: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Positions of at most so many crops of each object as a class, spread over all of them, in their order.

    The last one is always there: it is nearest to the window that comes next.

    Args:
        classes: (N,) of each crop.
        tracks: (N,) object of each crop; those of one stand in the order of time.
        most: of an object that is always called the same.
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
    """How much each tried crop counts for what the scene is at the end of the window.

    The accuracies of the model that serves on the earlier and on the later half say whether the scene
    changed: with d their difference, and v the variance that it has if nothing did, the later half counts
    d² / (d² + v) for itself alone.

    Args:
        labelled: all labels of the window.
        tried: (N,) positions of those that are measured on.
        right: (N,) which of them the model that serves gets right.
        background: a class that does not count; None where there is none.

    Returns:
        (N,) that sum to 1, or zeros where nothing counts.
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
    """As ``weights_now``, where the window is but a part of its labels."""
    weights = np.zeros(len(tried))
    within = part[tried]
    places = np.cumsum(part) - 1
    of = weights_by_object(labelled.classes[part], labelled.tracks[part], background, places[tried[within]])
    weights[within] = of / of.sum() if of.any() else of
    return weights


def independent_crops(weights: NDArray[np.float64], tracks: NDArray[np.int64]) -> int:
    """Crops that are measured on, as far as each tells something of its own: 1 / Σ (object's weight)².

    Args:
        weights: (N,) that sum to 1: how much each crop counts.
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
    """How much each crop counts, where those of one object are right or wrong together.

    A class counts by its crops, as it does in a window; within a class each object counts alike, since the
    one that stayed longest is not there in the next window.

    Args:
        classes: (N,) of each crop.
        tracks: (N,) object of each crop.
        background: a class that does not count; None where there is none.
        of: positions of the crops that stand for all; None for all.

    Returns:
        (N,) or one a position, that sum to 1, or to less by the part of classes that no position stands for.
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
    """Each crop is held out in one fold, with all crops of its object.

    Args:
        tracks: (N,) object of each crop.
        folds: how many; fewer where there are fewer objects.
        seed: of which objects go together.

    Returns:
        (N,) of each fold, whether a crop is held out.
    """
    drawn = np.random.default_rng((seed, folds)).permutation(np.unique(tracks))
    return [np.isin(tracks, drawn[first::folds]) for first in range(min(folds, len(drawn)))]
