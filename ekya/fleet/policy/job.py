"""A training job, with the attributes that all of the policies use, and what its waiting costs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp
from typing import Protocol

from ekya.fleet.policy.places import JobName, SiteName

_LARGEST_EXPONENT = 600.0
"""Of e, so that the sum of many costs is still a number."""


class WaitingCost(Protocol):
    """A non-decreasing function of the response time, from arrival to end (Okita §III.B)."""

    @property
    def per_s(self) -> float:
        """Sensitivity to waiting: ω in ANDREAS, τ in Okita's priority (Eq. 4)."""

    @property
    def due_s(self) -> float | None:
        """Response time from which a job is late; None where it never is."""

    def cost_after(self, response_s: float) -> float:
        """Returns the cost of a response time."""


@dataclass(frozen=True, slots=True)
class Tardiness:
    """Zero until the due date, then linear (ANDREAS §IV.A).

    Attributes:
        due_s: after the job's arrival.
        per_s: ω.
    """

    due_s: float
    per_s: float

    def cost_after(self, response_s: float) -> float:
        """Returns ω times the tardiness."""
        return self.per_s * max(0.0, response_s - self.due_s)


@dataclass(frozen=True, slots=True)
class Growing:
    """τ e^(rate t): Okita's default, which §V.B calls the sigmoid function.

    Attributes:
        per_s: τ.
        rate: 0.25 a slot in the paper.
    """

    per_s: float
    rate: float
    due_s: None = None

    def cost_after(self, response_s: float) -> float:
        """Returns the cost of a response time; it grows no more where numbers end."""
        return self.per_s * exp(min(self.rate * response_s, _LARGEST_EXPONENT))


@dataclass(frozen=True, slots=True)
class Linear:
    """τ t + b (Okita §V.B).

    Attributes:
        per_s: τ.
        base: b.
    """

    per_s: float
    base: float
    due_s: None = None

    def cost_after(self, response_s: float) -> float:
        """Returns the cost of a response time."""
        return self.per_s * response_s + self.base


@dataclass(frozen=True, slots=True)
class Cliff:
    """τ₁ before c and τ₂ from then on (Okita §V.B, the piecewise function): a hard deadline.

    Attributes:
        before, after: τ₁ and τ₂.
        due_s: c.
    """

    before: float
    after: float
    due_s: float

    @property
    def per_s(self) -> float:
        """τ₂."""
        return self.after

    def cost_after(self, response_s: float) -> float:
        """Returns the cost of a response time."""
        return self.before if response_s < self.due_s else self.after


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
