"""Examples that a model is measured on, and their weights: one vote per object, more for late labels.

A window's accuracy is measured to predict the next window. So an object counts once, however long it stayed,
and if the scene changed while labels were taken, those of the later half count more (``weights_now``).
"""

import numpy as np
from numpy.typing import NDArray

from ekya.models.training.frames import LabelledFrames, distinct_objects
from ekya.models.training.goals import Judged
from ekya.models.training.labelled import Examples, LabelledCrops

CROPS_OF_ONE = 3
"""Maximum number of crops of one object that are measured on: a fourth adds next to nothing to three."""

ENOUGH_CROPS = 100
"""Target number of crops that are measured on. If more are available, fewer are taken of each object, but one
at least: the variance of a measurement depends on the number of objects."""


def tried_of(labelled: Examples) -> NDArray[np.int64]:
    """Returns the positions of examples that are measured on: all frames, or a few crops of each object."""
    if not isinstance(labelled, LabelledCrops):
        return np.arange(len(labelled))
    crops_of_one = min(CROPS_OF_ONE, max(1, ENOUGH_CROPS // len(np.unique(labelled.tracks))))
    return few_of_each(labelled.classes, labelled.tracks, crops_of_one)


def weighed_now(
    labelled: Examples,
    tried: NDArray[np.int64],
    judged: Judged,
    background: int | None,
    changes: bool = True,
) -> NDArray[np.float64]:
    """Returns (N,) weights, at least 0, for the accuracy of tried examples on the scene at the window's end.

    Args:
        labelled: all labels of the window.
        tried: (N,) positions of the examples that are measured on.
        judged: how right the serving model is on these.
        background: a class of crops that does not count; None if there is none.
        changes: the scene may have changed while labels were taken.
    """
    match labelled:
        case LabelledCrops() if not changes:
            return weights_by_object(labelled.classes, labelled.tracks, background, tried)
        case LabelledFrames() if not changes:
            return np.ones(len(tried))
        case LabelledCrops():
            return weights_now(labelled, tried, judged.correct > 0, background)
        case LabelledFrames():
            return _frames_now(labelled.select_rows(tried), judged)
        case _:
            raise TypeError(f"{type(labelled).__name__} has no weights")


def _frames_now(frames: LabelledFrames, judged: Judged) -> NDArray[np.float64]:
    """Returns the weights of frames; the later half counts more if the scene changed."""
    every = np.ones(len(frames))
    later = frames.t_us > np.median(frames.t_us)
    halves = [np.flatnonzero(~later), np.flatnonzero(later)]
    objects = [max(1, distinct_objects(frames.select_rows(half))) for half in halves]
    if not all(judged.counted[half].any() for half in halves):
        return every
    before, after = (judged.accuracy(of.astype(np.float64)) for of in (~later, later))
    part = _part_of_later(after - before, judged.accuracy(every), sum(1.0 / count for count in objects))
    # With ``part`` 1 the earlier half has no weight.
    return np.where(later, 1.0, 1.0 - part)


def _part_of_later(difference: float, mean: float, variance: float) -> float:
    """Returns the part of the weights, in [0, 1], that the later half of a window alone should have.

    The accuracies of the serving model on the earlier and on the later half show whether the scene changed:
    with d their difference, and v the variance of d if it did not, that is d² / (d² + v).

    Args:
        difference: of the accuracies on both halves.
        mean: accuracy on both.
        variance: of ``difference`` if nothing changed, as a multiple of that of one object.
    """
    # Bounds by Laplace's rule for 1 / variance objects: if all are right or wrong, their variance is not 0.
    bounded = float(np.clip(mean, variance / (1 + 2 * variance), 1 - variance / (1 + 2 * variance)))
    return difference**2 / (difference**2 + bounded * (1.0 - bounded) * variance)


def few_of_each(classes: NDArray[np.int64], tracks: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Returns positions of at most ``most`` crops of each object and class, evenly spread, in order.

    The last crop is always included: it is nearest to the next window.

    Args:
        classes: (N,) of each crop.
        tracks: (N,) object of each crop; crops of one object are in the order of time.
        most: maximum number of crops of one object with one class.
    """
    order = np.lexsort((tracks, classes))
    # No class is -1, so the first row begins a group.
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
    variance = sum(1.0 / independent_crops(weights, tracks) for weights in halves)
    alone = _part_of_later(float((halves[1] - halves[0]) @ right), float(every @ right), variance)
    return (1.0 - alone) * every + alone * halves[1]


def _of_part(
    labelled: LabelledCrops, tried: NDArray[np.int64], part: NDArray[np.bool_], background: int | None
) -> NDArray[np.float64]:
    """Returns the weights by object within one part of the labels, zero outside it; they sum to 1."""
    weights = np.zeros(len(tried))
    within = part[tried]
    # Maps positions among all labels to positions within the part.
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
