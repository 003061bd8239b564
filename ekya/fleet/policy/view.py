"""A policy's view of the fleet."""

from dataclasses import dataclass, field

from ekya.fleet.policy.assignment import Assignment
from ekya.fleet.policy.job import Left, TrainJob
from ekya.fleet.policy.names import JobName
from ekya.fleet.policy.places import Places
from ekya.fleet.policy.strikes import Strikes


@dataclass(frozen=True, slots=True)
class JobState:
    """A job that has arrived and is not done.

    Attributes:
        job: the job.
        left: remaining work at its last snapshot.
        assignment: current one; None where it waits.
        strikes: failures of nodes under this job.
    """

    job: TrainJob
    left: Left
    assignment: Assignment | None = None
    strikes: Strikes = field(default_factory=Strikes)


@dataclass(frozen=True, slots=True)
class FleetView:
    """A snapshot of the fleet; equal snapshots always get the same decision.

    Attributes:
        now_us: time of the snapshot.
        jobs: in the order of arrival.
        places: working machines, and links.
        seed: for policies that draw at random.
    """

    now_us: int
    jobs: tuple[JobState, ...]
    places: Places
    seed: int = 0

    def state(self, job: JobName) -> JobState:
        """Returns the state of a job."""
        return next(state for state in self.jobs if state.job.name == job)
