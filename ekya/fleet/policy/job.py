"""A training job, with the attributes that all of the policies use."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ekya.fleet.policy.names import JobName, NodeName, SiteName
from ekya.fleet.policy.waiting import WaitingCost

EpochUs = Mapping[tuple[str, int], int]
"""Microseconds of an epoch, by kind of node and number of GPUs."""


@dataclass(frozen=True, slots=True)
class TrainJob:
    """One training. Each policy reads the attributes that its paper uses; the others may be empty.

    Attributes:
        name: of the job.
        arrives_us: time of arrival.
        epochs: E_i, number of epochs.
        waiting: cost of a late end, with due date and weight.
        chunks: D_i^r, data chunks (Okita) or samples (Deep-Edge) at each site.
        chunk_mb: δ_i, size of a chunk.
        model_mb: π_i, exchanged by a worker and the parameter server in a slot, and moved by a migration.
        epoch_us: t_jng / E_j, length of an epoch by kind of node and number of GPUs (ANDREAS).
        worker, parameter_server: m_i^k and n_i^k, needs of one worker and of it, by resource.
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
    parameter_server: Mapping[str, float] = field(default_factory=dict)
    chunks_per_slot: float = 0.0
    allowed: frozenset[NodeName] = frozenset()

    @property
    def due_us(self) -> int | None:
        """Due date on the fleet's clock; None for a job that is never late."""
        due_s = self.waiting.due_s
        return None if due_s is None else self.arrives_us + round(due_s * 1e6)


@dataclass(frozen=True, slots=True)
class Left:
    """Remaining work of a job at its last snapshot.

    Attributes:
        epochs: still to train.
        chunks: M_i^r, data that is still to be trained, by site of origin.
        begun: part of the first of these epochs that is done, in a world where snapshots cost nothing.
    """

    epochs: int
    chunks: Mapping[SiteName, int]
    begun: float = 0.0

    @classmethod
    def all_of(cls, job: TrainJob) -> "Left":
        """Returns the work of a job that has not begun."""
        return cls(job.epochs, dict(job.chunks))
