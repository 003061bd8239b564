"""What a policy sees."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ekya.fleet.policy.assignment import Assignment
from ekya.fleet.policy.job import Left, TrainJob
from ekya.fleet.policy.names import JobName, NodeName
from ekya.fleet.policy.places import Places


@dataclass(frozen=True, slots=True)
class JobState:
    """A job that is there and not done.

    Attributes:
        job: what it is.
        left: of it, at its last snapshot.
        assignment: what it has now; None where it waits.
        strikes: how often a node has failed under it, where one has.
    """

    job: TrainJob
    left: Left
    assignment: Assignment | None = None
    strikes: Mapping[NodeName, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FleetView:
    """A snapshot: the same one always gets the same decision.

    Attributes:
        now_us: the time.
        jobs: in the order in which they arrived.
        places: machines that work, and links.
        seed: for a policy that draws.
    """

    now_us: int
    jobs: tuple[JobState, ...]
    places: Places
    seed: int = 0

    def state(self, job: JobName) -> JobState:
        """Of one job."""
        return next(state for state in self.jobs if state.job.name == job)
