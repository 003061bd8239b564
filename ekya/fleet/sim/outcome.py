"""Results of a simulated fleet."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from ekya.core.units import US_PER_S
from ekya.fleet.policy.job import TrainJob
from ekya.fleet.policy.places import JobName, NodeName


@dataclass(slots=True, eq=False)
class JobRecord:
    """Result of one job.

    Attributes:
        started_us, ended_us: None where it never started or ended.
        migrations: number of moves to another set of nodes.
        preemptions: number of times it was sent back to wait.
        lost_us: work lost by interruptions, since the last snapshot of each.
        moved_mb, link_cost: over links between sites.
        late_apps: background applications that missed their deadline, summed over its stages.
    """

    job: TrainJob
    started_us: int | None = None
    ended_us: int | None = None
    migrations: int = 0
    preemptions: int = 0
    lost_us: int = 0
    moved_mb: float = 0.0
    link_cost: float = 0.0
    late_apps: int = 0

    def response_s(self, until_us: int) -> float:
        """Returns the time from its arrival to its end, or to ``until_us`` where it did not end."""
        end_us = until_us if self.ended_us is None else self.ended_us
        return max(0, end_us - self.job.arrives_us) / US_PER_S

    def tardiness_s(self, until_us: int) -> float:
        """Returns the time by which it is late, at least 0."""
        due_s = self.job.waiting.due_s
        return 0.0 if due_s is None else max(0.0, self.response_s(until_us) - due_s)


@dataclass(frozen=True, slots=True)
class FleetOutcome:
    """Result of a simulation.

    Attributes:
        jobs: in the order of arrival.
        ended_us: time of the last event.
        energy_j: energy by node, without the overhead of the sites.
        energy_cost: total cost of energy, with the overhead.
        decide_s: time of each decision on the host.
    """

    policy: str
    jobs: Mapping[JobName, JobRecord]
    ended_us: int
    energy_j: Mapping[NodeName, float]
    energy_cost: float
    decide_s: tuple[float, ...]

    @property
    def waiting_cost(self) -> float:
        """Waiting cost of all jobs; a job that did not end is charged until the end of the simulation."""
        return sum(
            record.job.waiting.cost_after(record.response_s(self.ended_us)) for record in self.jobs.values()
        )

    @property
    def link_cost(self) -> float:
        """Cost of all traffic on links."""
        return sum(record.link_cost for record in self.jobs.values())

    @property
    def total_cost(self) -> float:
        """Sum of all costs, which the papers compare."""
        return self.waiting_cost + self.link_cost + self.energy_cost

    @property
    def makespan_s(self) -> float:
        """Time from the first arrival to the end of the simulation."""
        if not self.jobs:
            return 0.0
        return (self.ended_us - min(record.job.arrives_us for record in self.jobs.values())) / US_PER_S

    @property
    def unfinished(self) -> tuple[JobName, ...]:
        """Jobs that never ended."""
        return tuple(name for name, record in self.jobs.items() if record.ended_us is None)

    @property
    def missed(self) -> int:
        """Number of late jobs."""
        return sum(record.tardiness_s(self.ended_us) > 0 for record in self.jobs.values())

    @property
    def late_apps(self) -> int:
        """Background applications that missed their deadline, summed over all stages."""
        return sum(record.late_apps for record in self.jobs.values())

    @property
    def epoch_s(self) -> float | None:
        """Time from start to end per epoch, averaged over jobs that ended; None without one."""
        own = [
            (record.ended_us - record.started_us) / record.job.epochs / US_PER_S
            for record in self.jobs.values()
            if record.ended_us is not None and record.started_us is not None
        ]
        return fmean(own) if own else None
