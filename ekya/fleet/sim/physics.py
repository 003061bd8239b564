"""How long a training takes and what it costs, as a paper's world has it; the engine knows no paper."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ekya.fleet.policy.assignment import Assignment
from ekya.fleet.policy.job import Left
from ekya.fleet.policy.view import FleetView, JobState


@dataclass(frozen=True, slots=True)
class Interrupted:
    """What there is of a stage that has no end.

    Attributes:
        left: of the job, at its last snapshot.
        lost_us: worked since then.
    """

    left: Left
    lost_us: int


@dataclass(frozen=True, slots=True)
class Stage:
    """What lies between two snapshots of a running job.

    Attributes:
        takes_us: its length.
        left: of the job when it ends; None where the job is done.
        moved_mb: over links between sites, from its beginning on.
        link_cost: of that.
        kept: what an interruption after so many microseconds leaves, where snapshots are taken on the way;
            where it is None, all of the stage is lost.
        failed: the same where a node fails; as ``kept`` where it is None.
        late_apps: background applications that miss their deadline as long as it lasts.
    """

    takes_us: int
    left: Left | None
    moved_mb: float = 0.0
    link_cost: float = 0.0
    kept: Callable[[int], Interrupted] | None = None
    failed: Callable[[int], Interrupted] | None = None
    late_apps: int = 0


class Physics(Protocol):
    """The laws of one workload."""

    def faults(self, view: FleetView, assignments: Sequence[Assignment]) -> list[str]:
        """Which constraints the assignments break together; empty where they keep all."""

    def stage(
        self, view: FleetView, state: JobState, assignment: Assignment, others: Sequence[Assignment]
    ) -> Stage:
        """The next stage of a job under its assignment, while others run."""

    def resume_us(self, view: FleetView, state: JobState, assignment: Assignment) -> int:
        """What a start elsewhere, or after a pause, takes before its first stage: fetching the snapshot."""
