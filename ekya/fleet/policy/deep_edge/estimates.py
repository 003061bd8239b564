"""Estimators that are fitted to profiles (Deep-Edge, Equations 5 to 8), and the profiles' data points."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ekya.core.units import FULL_GPU_MILLI
from ekya.fleet.policy.places import NodeState


@dataclass(frozen=True, slots=True)
class EdgeTraining:
    """Input of the estimators for one worker.

    Attributes:
        state: X_i, without the training.
        batch: b_i.
        share_milli: of the processor time that an unthrottled training would take.
    """

    kind: str
    state: NodeState
    batch: int
    share_milli: int = FULL_GPU_MILLI


class EdgeEstimates(Protocol):
    """The paper's estimators, extended by the share to which a worker is throttled."""

    def compute_s(self, worker: EdgeTraining) -> float:
        """Returns EstComputeTime: t_i^compute, for one sample."""

    def update_s(self, workers: Sequence[EdgeTraining], parameter_server: NodeState) -> list[float]:
        """Returns EstUpdateTime: t_i^update of each worker, for one step."""

    def state_after(self, worker: EdgeTraining) -> NodeState:
        """Returns EstState: X_i^new, while it trains."""

    def exec_s(self, kind: str, app: str, state: NodeState) -> float:
        """Returns EstExecTime: execution time of a background application on a machine in a state."""


@dataclass(frozen=True, slots=True)
class EdgeLimits:
    """Limits of constraints (1) and (4), with the errors of the estimates compared with them.

    Attributes:
        batch_min, batch_max: b_min and b_max.
        mem: part of a machine's memory that may be in use.
        mem_error, exec_error: relative errors by which the truth may exceed an estimate, measured on held-out
            points. An application's δ is its deadline less this error.
    """

    batch_min: int = 2
    batch_max: int = 32
    mem: float = 0.97
    mem_error: float = 0.0
    exec_error: float = 0.0


ANY_EDGE = EdgeLimits()
"""Default limits, without errors."""


@dataclass(frozen=True, slots=True)
class ProfilePoint:
    """Measurement of a training on a worker under stress, with an application beside it.

    Attributes:
        before: X_i^initial, used by the stressors and the application.
        batch: b_i.
        batches: B, of all workers, including this one.
        parameter_server: X_ps.
        share_milli: of the processor time that an unthrottled training would take.
        compute_s: t_i^compute, forward and backward pass, per sample.
        update_s: t_i^update, push, update and pull, per step.
        after: X_i^new, while it trains.
        app: name of the application beside it.
        exec_s: execution time of that application.
    """

    kind: str
    before: NodeState
    batch: int
    batches: tuple[int, ...]
    parameter_server: NodeState
    share_milli: int
    compute_s: float
    update_s: float
    after: NodeState
    app: str
    exec_s: float

    @property
    def training(self) -> EdgeTraining:
        """Input of the estimators for this worker."""
        return EdgeTraining(self.kind, self.before, self.batch, self.share_milli)
