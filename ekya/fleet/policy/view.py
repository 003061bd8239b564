"""A policy's view of the fleet, and the protocol of fleet policies."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from ekya.fleet.policy.assignment import Decision, JobAssignment
from ekya.fleet.policy.job import Left, TrainJob
from ekya.fleet.policy.places import JobName, Places


@dataclass(frozen=True, slots=True)
class JobState:
    """A job that has arrived and is not done.

    Attributes:
        job: the job.
        left: remaining work at its last snapshot.
        assignment: current one; None where it waits.
    """

    job: TrainJob
    left: Left
    assignment: JobAssignment | None = None


@dataclass(frozen=True)
class FleetView:
    """A snapshot of the fleet; equal snapshots always get the same decision.

    Attributes:
        now_us: time of the snapshot.
        jobs: in the order of arrival.
        places: machines, and links.
        seed: for policies that draw at random.
    """

    now_us: int
    jobs: tuple[JobState, ...]
    places: Places
    seed: int = 0

    def state(self, job: JobName) -> JobState:
        """Returns the state of a job."""
        return self._state_of[job]

    @cached_property
    def _state_of(self) -> Mapping[JobName, JobState]:
        return {state.job.name: state for state in self.jobs}


class FleetPolicy(Protocol):
    """Schedules trainings on a fleet: place, time and resources."""

    @property
    def name(self) -> str:
        """Name in the registry."""

    @property
    def on_events(self) -> bool:
        """Whether it is called at each arrival and end of a job.

        Otherwise such an event waits for the next call. It is called only as long as a job is there.
        """

    @property
    def every_us(self) -> int | None:
        """It is called at all multiples of this time on the fleet's clock; None: only at events."""

    def decide(self, view: FleetView) -> Decision:
        """Assigns each job of the view or lets it wait, with a reason; no resource is given out twice.

        Equal views get equal decisions: nothing is remembered.
        """
