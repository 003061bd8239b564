"""A policy's view of the fleet, and the protocol of fleet policies."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from ekya.fleet.policy.assignment import Decision, JobAssignment
from ekya.fleet.policy.job import Left, TrainJob
from ekya.fleet.policy.places import JobName, NodeName, Places

STRIKES = 3
"""Failures under one training after which a node is excluded from it."""


@dataclass(frozen=True, slots=True)
class Strikes:
    """Failures under one training, by node.

    Attributes:
        counted: by name, or by machine id where a machine that comes back has none.
        gone: dead nodes.
    """

    counted: Mapping[str, int] = field(default_factory=dict)
    gone: frozenset[str] = frozenset()

    def with_failures(self, *nodes: str) -> "Strikes":
        """Returns a copy with one more failure of a node for each time it is named."""
        counted = dict(self.counted)
        for node in nodes:
            counted[node] = counted.get(node, 0) + 1
        return Strikes(counted, self.gone)

    def with_dead_node(self, node: str) -> "Strikes":
        """Returns a copy in which the node is dead, so that another attempt is useless."""
        return Strikes(self.counted, self.gone | {node})

    @property
    def out(self) -> frozenset[str]:
        """Excluded nodes."""
        return self.gone | {node for node, count in self.counted.items() if count >= STRIKES}


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
    assignment: JobAssignment | None = None
    strikes: Strikes = field(default_factory=Strikes)

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


class FleetPolicy(Protocol):
    """Schedules trainings on a fleet: place, time and resources."""

    @property
    def name(self) -> str:
        """Name in the registry."""

    @property
    def on_events(self) -> bool:
        """Whether it is called at each arrival and end of a job, and when a node fails or returns.

        Otherwise such an event waits for the next call. It is called only as long as a job is there.
        """

    @property
    def every_us(self) -> int | None:
        """It is called at all multiples of this time on the fleet's clock; None: only at events."""

    def decide(self, view: FleetView) -> Decision:
        """Assigns each job of the view or lets it wait, with a reason; no resource is given out twice.

        Equal views get equal decisions: nothing is remembered.
        """
