"""Workers of a training: work, shards, the division of epochs into steps, and traffic between nodes.

Traffic is payload: weights, gradients, pictures and their labels; not the network's overhead.
"""

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from enum import StrEnum

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

    def with_work(self, other: "EpochWork") -> "EpochWork":
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


class PayloadKind(StrEnum):
    """Kind of payload."""

    DATA = "data"
    """Crops with their labels, to workers and to the parameter server."""
    MODEL = "model"
    """Start model, to all processes."""
    PUSHED = "pushed"
    """Gradients."""
    PULLED = "pulled"
    """Weights for the workers' next step."""
    CHECKPOINT = "checkpoint"
    """Snapshots, from the parameter server to home and from home to the next parameter server."""


Way = tuple[NodeName, NodeName, PayloadKind]
"""Origin, target and kind."""


@dataclass(frozen=True, slots=True)
class TrainingTraffic:
    """Bytes by way.

    Attributes:
        sent: includes bytes that stay on a node, with the same origin and target.
    """

    sent: Mapping[Way, int] = field(default_factory=dict)

    def with_bytes(
        self, origin: NodeName, target: NodeName, kind: PayloadKind, count: int
    ) -> "TrainingTraffic":
        """Returns a copy with this number of bytes more."""
        way = (origin, target, kind)
        return TrainingTraffic({**self.sent, way: self.sent.get(way, 0) + count}) if count else self

    def crossed_bytes(self, kind: PayloadKind | None = None) -> int:
        """Returns the bytes that left a node, of one kind or of all."""
        return sum(
            count
            for (origin, target, what), count in self.sent.items()
            if origin != target and kind in (None, what)
        )

    def left_bytes(self, node: NodeName) -> int:
        """Returns the bytes that left this node."""
        return sum(count for (origin, target, _), count in self.sent.items() if origin == node != target)
