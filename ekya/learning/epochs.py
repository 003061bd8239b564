"""Which crops an epoch trains on, in which order, cut into batches. Nothing here knows a model."""

import numpy as np
from numpy.typing import NDArray

REPLAY_RATIO = 0.5
"""Exemplars mixed into an epoch, as a part of its new crops: each epoch draws others."""


def epoch_batches(
    fresh_crops: int, exemplars: int, batch_size: int, seed: tuple[int, ...], epoch: int
) -> list[NDArray[np.int64]]:
    """Every fresh crop once and some exemplars, in batches.

    Args:
        fresh_crops: at positions from 0 on.
        exemplars: at the positions that follow.
        batch_size: as of ``batches_of``.
        seed: of the order; with the epoch it decides everything.
        epoch: how many are done; 0 for the first.
    """
    rng = np.random.default_rng((*seed, epoch))
    fresh = np.arange(fresh_crops)
    replayed = rng.choice(exemplars, crops_in_epoch(fresh_crops, exemplars) - fresh_crops, replace=False)
    order = rng.permutation(np.concatenate([fresh, fresh_crops + replayed.astype(np.int64)]))
    return batches_of(order, batch_size)


def crops_in_epoch(fresh_crops: int, exemplars: int) -> int:
    """Crops that one epoch trains on: all fresh ones, and exemplars for ``REPLAY_RATIO`` of them."""
    return fresh_crops + min(exemplars, round(REPLAY_RATIO * fresh_crops))


def batches_of(order: NDArray[np.int64], batch_size: int) -> list[NDArray[np.int64]]:
    """Cut an order into batches. Batch normalisation needs two crops, so none is left alone."""
    if len(order) == 1:
        return [order.repeat(2)]
    cuts = list(range(batch_size, len(order), batch_size))
    if cuts and len(order) - cuts[-1] == 1:
        cuts.pop()
    return list(np.split(order, cuts))


def steps_in_epoch(crops: int, batch_size: int) -> int:
    """How many batches ``batches_of`` makes of so many crops; none of none."""
    batches = -(-crops // batch_size)
    left_alone = batches > 1 and crops - (batches - 1) * batch_size == 1
    return batches - left_alone
