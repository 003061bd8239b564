"""Who works on a training, and on what."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekya.fleet.policy.names import NodeName
from ekya.learning.epochs import epoch_batches

Positions = NDArray[np.int64]
"""(N,) places in the crops of a whole training: fresh ones from 0 on, exemplars behind them."""


@dataclass(frozen=True, slots=True, order=True)
class WorkerId:
    """One worker of a training.

    Attributes:
        node: where it works.
        place: which one it is there, from 0 on.
    """

    node: NodeName
    place: int


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """What a worker has to go through.

    Attributes:
        fresh, exemplars: positions, each sorted.
        batch: crops in a step of its own, where it makes steps of its own.
        share_milli: of what its node would give it, what it may use.
    """

    fresh: Positions
    exemplars: Positions
    batch: int
    share_milli: int = 1000

    @property
    def positions(self) -> Positions:
        """All of them, sorted."""
        return np.concatenate([self.fresh, self.exemplars])


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """How an epoch of a training is cut into steps.

    Attributes:
        together: whether a step is one of all workers.
        fresh, exemplars: how many crops of each there are in all.
        batch: crops in a step of all workers.
        seed: of the order.
    """

    together: bool
    fresh: int
    exemplars: int
    batch: int
    seed: int

    def steps(self, shard: Shard, number: int, epoch: int) -> list[Positions]:
        """The steps of one worker in an epoch, as places in its shard's ``positions``.

        Together, the order is that of a training on one node, and of each of its batches a worker has what it
        holds, which may be nothing: so what is learnt does not depend on who holds what. Otherwise each
        worker has an order of its own.

        Args:
            shard: its crops.
            number: of the worker among all.
            epoch: how many are done.
        """
        if not self.together:
            count = len(shard.fresh)
            if not count:
                return []
            return epoch_batches(count, len(shard.exemplars), shard.batch, (self.seed, number), epoch)
        whole = epoch_batches(self.fresh, self.exemplars, self.batch, (self.seed,), epoch)
        place = np.full(self.fresh + self.exemplars, -1)
        place[shard.positions] = np.arange(len(shard.positions))
        return [held[held >= 0] for held in (place[batch] for batch in whole)]
