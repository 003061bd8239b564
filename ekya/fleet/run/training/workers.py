"""Workers of a training, their work and shards, and the division of epochs into steps."""

from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import NDArray

from ekya.fleet.policy.places import NodeName
from ekya.models.training.epochs import epoch_batches

Positions = NDArray[np.int64]
"""(N,) positions in the crops of a whole training: fresh ones from 0 on, exemplars after them."""


@dataclass(frozen=True, slots=True, order=True)
class WorkerId:
    """Id of a worker of a training.

    Attributes:
        node: where it works.
        place: its number there, from 0.
    """

    node: NodeName
    place: int


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """Crops of one worker.

    Attributes:
        fresh, exemplars: positions, each sorted.
        batch: crops in a step of this worker alone.
        share_milli: thousandths of the worker's part of its node.
    """

    fresh: Positions
    exemplars: Positions
    batch: int
    share_milli: int = 1000

    @property
    def positions(self) -> Positions:
        """All positions, sorted."""
        return np.concatenate([self.fresh, self.exemplars])


@dataclass(frozen=True, slots=True)
class EpochWork:
    """Work of a worker in an epoch, complete or not, or of several.

    Attributes:
        steps, crops: number of batches, and of crops in them.
        compute_s: wall time for gradients, including waiting for the share.
        update_s: wall time for pushing gradients, updates, and pulling, including waiting for other workers.
        pushed, pulled: bytes.
    """

    steps: int = 0
    crops: int = 0
    compute_s: float = 0.0
    update_s: float = 0.0
    pushed: int = 0
    pulled: int = 0

    def plus(self, other: "EpochWork") -> "EpochWork":
        """Returns the sum."""
        return EpochWork(*(mine + more for mine, more in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """Division of an epoch into steps.

    Attributes:
        together: a step is one of all workers.
        fresh, exemplars: number of crops of each in total.
        batch: crops in a step of all workers.
        seed: of the order.
    """

    together: bool
    fresh: int
    exemplars: int
    batch: int
    seed: int

    def steps(self, shard: Shard, number: int, epoch: int) -> list[Positions]:
        """Returns the steps of one worker in an epoch, as places in its shard's ``positions``.

        Together, the order is that of a training on one node, and a worker's part of each batch is what it
        holds, which may be nothing: so the result does not depend on the distribution of crops. Otherwise
        each worker has a separate order.

        Args:
            shard: its crops.
            number: of the worker among all.
            epoch: number of epochs done.
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
