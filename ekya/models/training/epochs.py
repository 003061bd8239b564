"""Chooses the crops of an epoch, their order and their batches, independently of the model."""

import numpy as np
from numpy.typing import NDArray

from ekya.core.configs import crops_in_epoch


def epoch_batches(
    fresh_crops: int,
    exemplars: int,
    batch_size: int,
    seed: tuple[int, ...],
    epoch: int,
    versions: int = 1,
) -> list[NDArray[np.int64]]:
    """Returns batches of every fresh crop once, in one of its versions, and some exemplars.

    Args:
        fresh_crops: number of new crops, at positions from 0 on, version by version.
        exemplars: number of exemplars, at the positions that follow.
        batch_size: as in ``batches_of``.
        seed: of the choice and the order, together with the epoch.
        epoch: number of epochs done; 0 for the first.
        versions: of each new crop.
    """
    # One generator for each epoch, so that a continued training draws as an uninterrupted one.
    rng = np.random.default_rng((*seed, epoch))
    fresh = np.arange(fresh_crops)
    if versions > 1:
        fresh += fresh_crops * rng.integers(0, versions, fresh_crops)
    replayed = rng.choice(exemplars, crops_in_epoch(fresh_crops, exemplars) - fresh_crops, replace=False)
    order = rng.permutation(np.concatenate([fresh, versions * fresh_crops + replayed.astype(np.int64)]))
    return batches_of(order, batch_size)


def batches_of(order: NDArray[np.int64], batch_size: int) -> list[NDArray[np.int64]]:
    """Cut an order into batches of at least two crops, as batch normalisation needs."""
    if len(order) == 1:
        return [order.repeat(2)]
    cuts = list(range(batch_size, len(order), batch_size))
    if cuts and len(order) - cuts[-1] == 1:
        cuts.pop()
    return list(np.split(order, cuts))


def steps_in_epoch(crops: int, batch_size: int) -> int:
    """Returns the number of batches that ``batches_of`` makes of this number of crops; 0 for 0."""
    batches = -(-crops // batch_size)
    left_alone = batches > 1 and crops - (batches - 1) * batch_size == 1
    return batches - left_alone
