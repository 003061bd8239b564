"""What a policy of Deep-Edge may ask of the models learned from profiles (Equations 5 to 8)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ekya.core.units import FULL_GPU_MILLI
from ekya.fleet.policy.places import NodeState


@dataclass(frozen=True, slots=True)
class Training:
    """A worker of a training, as the models see it.

    Attributes:
        kind: of machine.
        state: X_i, without it.
        batch: b_i.
        share_milli: of the processor time that it would take if nobody held it back.
    """

    kind: str
    state: NodeState
    batch: int
    share_milli: int = FULL_GPU_MILLI


class EdgeEstimates(Protocol):
    """The paper's functions; unlike the paper's, they are also told to which share a worker is held."""

    def compute_s(self, worker: Training) -> float:
        """EstComputeTime: t_i^compute, for one sample."""

    def update_s(self, workers: Sequence[Training], server: NodeState) -> list[float]:
        """EstUpdateTime: t_i^update of each worker, for one step."""

    def state_after(self, worker: Training) -> NodeState:
        """EstState: X_i^new, while it trains."""

    def exec_s(self, kind: str, app: str, state: NodeState) -> float:
        """EstExecTime: what a background application takes on a machine in a state."""


@dataclass(frozen=True, slots=True)
class EdgeLimits:
    """Constraints (1) and (4), and how sure the models are of what they compare with them.

    Attributes:
        batch_min, batch_max: b_min and b_max.
        mem: part of a machine's memory that may be in use.
        mem_error, exec_error: by which part of an estimate the truth may be above it; measured on points
            that no model has learned from. An application's δ is its deadline less that.
    """

    batch_min: int = 2
    batch_max: int = 32
    mem: float = 0.97
    mem_error: float = 0.0
    exec_error: float = 0.0


ANY_EDGE = EdgeLimits()
"""Limits where nothing is known of errors."""


def max_batch(estimates: EdgeEstimates, worker: Training, limits: EdgeLimits) -> int:
    """GetMaxBatchSize: the largest batch for which EstState^mem finds room; 0 where b_min is too large.

    It halves the range again and again, as the paper's uses EstState^mem recursively.
    """

    def fits(batch: int) -> bool:
        asked = Training(worker.kind, worker.state, batch, worker.share_milli)
        return estimates.state_after(asked).mem * (1 + limits.mem_error) <= limits.mem

    if not fits(limits.batch_min):
        return 0
    low, high = limits.batch_min, limits.batch_max
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
