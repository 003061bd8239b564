"""What one profiling run measures: a row behind every estimator (Deep-Edge §V.B, Table I)."""

from dataclasses import dataclass

from ekya.fleet.policy.places import NodeState


@dataclass(frozen=True, slots=True)
class ProfilePoint:
    """A training that ran on a worker under stress, and an application beside it.

    Attributes:
        kind: of machine.
        before: X_i^initial, what the stressors and the application use.
        batch: b_i.
        batches: B, of all workers, this one's among them.
        server: X_ps, of the parameter server.
        share_milli: of the processor time that the training would take if nobody held it back.
        compute_s: t_i^compute, forward and backward, for a sample.
        update_s: t_i^update, push, update and pull, for a step.
        after: X_i^new, while it trains.
        app: which application ran beside it.
        exec_s: what that application took.
    """

    kind: str
    before: NodeState
    batch: int
    batches: tuple[int, ...]
    server: NodeState
    share_milli: int
    compute_s: float
    update_s: float
    after: NodeState
    app: str
    exec_s: float


@dataclass(frozen=True, slots=True)
class EdgeWork:
    """What a machine of a kind was profiled with; models of one say nothing of another.

    Attributes:
        kind: of machine.
        architecture, side: the edge model and its crops, in pixels.
        trainable_blocks: of it.
    """

    kind: str
    architecture: str
    side: int
    trainable_blocks: int


@dataclass(frozen=True, slots=True)
class Tried:
    """What a point was measured under, as it was asked for; the point itself has what came of it.

    Attributes:
        work: of which machine, and with what.
        cpu, mem: stress, in parts of one.
        batch: b_i.
        share_milli: to which the training was held.
    """

    work: EdgeWork
    cpu: float
    mem: float
    batch: int
    share_milli: int


@dataclass(frozen=True, slots=True)
class ServerPoint:
    """A parameter server under stress, and what it then uses.

    Attributes:
        kind: of machine.
        before: what the stressors use.
        batches: B, of the workers that push to it.
        after: while they do.
    """

    kind: str
    before: NodeState
    batches: tuple[int, ...]
    after: NodeState
