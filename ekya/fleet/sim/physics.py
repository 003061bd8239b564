"""Protocol for a paper's world (times, costs, constraints); the engine is independent of the papers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ekya.fleet.policy.assignment import JobAssignment
from ekya.fleet.policy.job import Left
from ekya.fleet.policy.view import FleetView, JobState


@dataclass(frozen=True, slots=True)
class Kept:
    """What the interruption of a stage leaves.

    Attributes:
        left: remaining work of the job at its last snapshot.
        lost_us: work since that snapshot.
    """

    left: Left
    lost_us: int


@dataclass(frozen=True, slots=True)
class Stage:
    """The part of a running job between two snapshots.

    Attributes:
        left: remaining work of the job at its end; None where the job is done.
        moved_mb: traffic over links between sites, charged at its beginning.
        link_cost: of that traffic.
        kept: state after an interruption, from the microseconds worked, for stages with snapshots in between;
            None: an interruption loses the whole stage.
        failed: the same for the failure of a node; None: as ``kept``.
        late_apps: background applications that miss their deadline during the stage.
        resume_us: time to fetch the snapshot where this is the first stage after a move or a pause.
    """

    takes_us: int
    left: Left | None
    moved_mb: float = 0.0
    link_cost: float = 0.0
    kept: Callable[[int], Kept] | None = None
    failed: Callable[[int], Kept] | None = None
    late_apps: int = 0
    resume_us: int = 0


class Physics(Protocol):
    """Times, costs and constraints of one world."""

    def faults(self, view: FleetView, assignments: Sequence[JobAssignment]) -> list[str]:
        """Returns the constraints that the assignments break together; empty where they keep all."""

    def stage(
        self, view: FleetView, state: JobState, assignment: JobAssignment, others: Sequence[JobAssignment]
    ) -> Stage:
        """Returns the next stage of a job under its assignment, beside those of other jobs."""
