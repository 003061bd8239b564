"""A policy's view of the fleet."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ekya.fleet.policy.assignment import JobAssignment
from ekya.fleet.policy.job import Left, TrainJob
from ekya.fleet.policy.names import JobName, NodeName
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
        memory: what the last decision remembers of it.
    """

    job: TrainJob
    left: Left
    assignment: JobAssignment | None = None
    strikes: Strikes = field(default_factory=Strikes)
    memory: str = ""

    def may_use(self, node: NodeName) -> bool:
        """Returns whether the job is allowed on a node, which has not failed too often under it."""
        return (not self.job.allowed or node in self.job.allowed) and node not in self.strikes.out


@dataclass(frozen=True)
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
        return self._state_of[job]

    @cached_property
    def _state_of(self) -> Mapping[JobName, JobState]:
        return {state.job.name: state for state in self.jobs}
