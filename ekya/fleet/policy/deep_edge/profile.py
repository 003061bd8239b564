"""Data points of profiling runs, from which the estimators learn (Deep-Edge §V.B, Table I)."""

from dataclasses import dataclass

from ekya.fleet.policy.deep_edge.estimates import EdgeTraining
from ekya.fleet.policy.places import NodeState

INFERENCE = "inference"
"""Name of the background application that is profiled: the inference of the server that also trains."""


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


@dataclass(frozen=True, slots=True)
class EdgeWork:
    """Training with which a kind of machine was profiled; the models of one do not hold for another.

    Attributes:
        architecture, side: edge model, and the side of its crops in pixels.
        trainable_blocks: of the edge model.
    """

    kind: str
    architecture: str
    side: int
    trainable_blocks: int


@dataclass(frozen=True, slots=True)
class ProfileSetting:
    """Requested settings of a point; the point itself has the measured values.

    Attributes:
        work: machine and training.
        cpu, mem: stress, in [0, 1].
        batch: b_i.
        share_milli: to which the training was throttled.
    """

    work: EdgeWork
    cpu: float
    mem: float
    batch: int
    share_milli: int


@dataclass(frozen=True, slots=True)
class ParameterServerPoint:
    """Measurement of a parameter server under stress.

    Attributes:
        before: used by the stressors.
        batches: B, of the workers that push to it.
        after: while workers push to it.
    """

    kind: str
    before: NodeState
    batches: tuple[int, ...]
    after: NodeState
