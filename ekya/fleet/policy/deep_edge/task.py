"""One update that is to be spread over machines: what every solver is given, and what it answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import floor
from typing import Protocol

from ekya.core.units import FULL_GPU_MILLI
from ekya.fleet.policy.assignment import Part
from ekya.fleet.policy.deep_edge.estimates import ANY_EDGE, EdgeEstimates, EdgeLimits, Training, max_batch
from ekya.fleet.policy.names import NodeName
from ekya.fleet.policy.places import Node, NodeState


@dataclass(frozen=True, slots=True)
class EdgeTask:
    """A training, and the machines that are free for it.

    Attributes:
        workers: W, with their states.
        server: X_ps.
        samples: |M|.
        estimates: all that is known of speeds.
        limits: of batches, memory and deadlines.
    """

    workers: tuple[Node, ...]
    server: NodeState
    samples: int
    estimates: EdgeEstimates
    limits: EdgeLimits = ANY_EDGE

    def max_batch(self, node: Node, share_milli: int = FULL_GPU_MILLI) -> int:
        """GetMaxBatchSize of a worker."""
        asked = Training(node.kind, node.state, self.limits.batch_min, share_milli)
        return max_batch(self.estimates, asked, self.limits)

    def sample_s(self, workers: Sequence[tuple[Node, int, int]]) -> list[float]:
        """t_i^total = t_i^compute + t_i^update / b_i, for workers with their batches and shares."""
        trainings = [Training(node.kind, node.state, batch, share) for node, batch, share in workers]
        updates_s = self.estimates.update_s(trainings, self.server)
        return [
            self.estimates.compute_s(training) + update_s / training.batch
            for training, update_s in zip(trainings, updates_s, strict=True)
        ]

    def pressure(self, node: Node, batch: int, share_milli: int = FULL_GPU_MILLI) -> str | None:
        """Which background application would be late; None where all keep their deadlines (constraint 4)."""
        training = Training(node.kind, node.state, batch, share_milli)
        after = self.estimates.state_after(training)
        for app in node.apps:
            takes_s = self.estimates.exec_s(node.kind, app.name, after)
            if takes_s * (1 + self.limits.exec_error) > app.deadline_s:
                return (
                    f"{app.name} would take {1000 * takes_s:.0f} of its {1000 * app.deadline_s:.0f} ms there"
                )
        return None


@dataclass(frozen=True, slots=True)
class EdgePlan:
    """Shards, batches and shares.

    Attributes:
        parts: of the workers that train; empty where none can.
        epoch_s: estimated.
        left_out: why the others do not.
    """

    parts: tuple[Part, ...]
    epoch_s: float
    left_out: Mapping[NodeName, str] = field(default_factory=dict)


class Solver(Protocol):
    """Spreads one task; the same one always the same way."""

    def __call__(self, task: EdgeTask) -> EdgePlan:
        """All samples are given to workers that may train, or to none."""


NO_MEMORY = "its memory has no room for the smallest batch"


def whole(shards: Mapping[NodeName, float], samples: int) -> dict[NodeName, int]:
    """Shards in whole samples, which sum to all of them: rounded down, and the largest rests get one more."""
    rounded = {name: floor(shard) for name, shard in shards.items()}
    rests = sorted(shards, key=lambda name: (rounded[name] - shards[name], name))
    for name in rests[: samples - sum(rounded.values())]:
        rounded[name] += 1
    return rounded
