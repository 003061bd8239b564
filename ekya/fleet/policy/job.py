"""What is to be trained, with all that any of the policies asks of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ekya.fleet.policy.names import JobName, NodeName, SiteName
from ekya.fleet.policy.waiting import WaitingCost

EpochUs = Mapping[tuple[str, int], int]
"""Microseconds of an epoch, by kind of node and number of its GPUs."""


@dataclass(frozen=True, slots=True)
class TrainJob:
    """One training. A policy reads what its paper knows of a job; a generator may leave the rest empty.

    Attributes:
        name: of the job.
        arrives_us: when it is there.
        epochs: E_i, how often all its data is gone through.
        waiting: what a late end costs, with its due date and weight.
        chunks: D_i^r, data chunks (Okita) or samples (Deep-Edge) at each site.
        chunk_mb: δ_i, size of one.
        model_mb: π_i, what a worker and the parameter server exchange in a slot, and what a migration moves.
        epoch_us: t_jng / E_j, one epoch on so many GPUs of a kind of node (ANDREAS).
        worker, server: m_i^k and n_i^k, what one worker and the parameter server need of each resource.
        chunks_per_slot: ρ_i / E_i, chunks that a worker takes through all epochs in a slot.
        allowed: nodes on which it may run; all where empty.
    """

    name: JobName
    arrives_us: int
    epochs: int
    waiting: WaitingCost
    chunks: Mapping[SiteName, int] = field(default_factory=dict)
    chunk_mb: float = 0.0
    model_mb: float = 0.0
    epoch_us: EpochUs = field(default_factory=dict)
    worker: Mapping[str, float] = field(default_factory=dict)
    server: Mapping[str, float] = field(default_factory=dict)
    chunks_per_slot: float = 0.0
    allowed: frozenset[NodeName] = frozenset()

    @property
    def due_us(self) -> int | None:
        """On the clock; None where nothing is ever late."""
        due_s = self.waiting.due_s
        return None if due_s is None else self.arrives_us + round(due_s * 1e6)


@dataclass(frozen=True, slots=True)
class Left:
    """What is left of a job at its last snapshot.

    Attributes:
        epochs: still to go through.
        chunks: M_i^r, data that no epoch has seen yet, by site; where it came up, wherever it is trained.
        begun: part of the first of these epochs that is done, in a world where snapshots are for nothing.
    """

    epochs: int
    chunks: Mapping[SiteName, int]
    begun: float = 0.0

    @classmethod
    def all_of(cls, job: TrainJob) -> "Left":
        """Nothing is done yet."""
        return cls(job.epochs, dict(job.chunks))
