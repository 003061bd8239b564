"""What came of a simulated fleet."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from ekya.core.units import US_PER_S
from ekya.fleet.policy.job import TrainJob
from ekya.fleet.policy.names import JobName, NodeName


@dataclass(slots=True, eq=False)
class JobRecord:
    """One job, as it went.

    Attributes:
        job: what it was.
        started_us, ended_us: None where that never came.
        migrations: how often it went on in another place or on another amount.
        preemptions: how often it was sent back to wait.
        lost_us: worked since the last snapshot when it was interrupted.
        moved_mb, link_cost: over links between sites.
        late_apps: background applications that a stage of it made miss their deadline, over all stages.
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
        """From its arrival to its end, or to the simulation's where it has none."""
        end_us = until_us if self.ended_us is None else self.ended_us
        return max(0, end_us - self.job.arrives_us) / US_PER_S

    def tardiness_s(self, until_us: int) -> float:
        """By how much it is late."""
        due_s = self.job.waiting.due_s
        return 0.0 if due_s is None else max(0.0, self.response_s(until_us) - due_s)


@dataclass(frozen=True, slots=True)
class FleetOutcome:
    """A simulation that is over.

    Attributes:
        policy: who decided.
        jobs: in the order of their arrival.
        ended_us: when the last thing happened.
        energy_j: drawn by nodes, by node; without the overhead of their sites.
        energy_cost: of all of it, with the overhead.
        decide_s: what each decision took on the host.
    """

    policy: str
    jobs: Mapping[JobName, JobRecord]
    ended_us: int
    energy_j: Mapping[NodeName, float]
    energy_cost: float
    decide_s: tuple[float, ...]

    @property
    def waiting_cost(self) -> float:
        """Of all jobs; one that did not end is charged for as long as it was watched."""
        return sum(record.job.waiting.of(record.response_s(self.ended_us)) for record in self.jobs.values())

    @property
    def link_cost(self) -> float:
        """Of everything that crossed a link."""
        return sum(record.link_cost for record in self.jobs.values())

    @property
    def total_cost(self) -> float:
        """What the papers compare."""
        return self.waiting_cost + self.link_cost + self.energy_cost

    @property
    def makespan_s(self) -> float:
        """From the first arrival to the last end."""
        if not self.jobs:
            return 0.0
        return (self.ended_us - min(record.job.arrives_us for record in self.jobs.values())) / US_PER_S

    @property
    def unfinished(self) -> tuple[JobName, ...]:
        """Jobs that never ended."""
        return tuple(name for name, record in self.jobs.items() if record.ended_us is None)

    @property
    def missed(self) -> int:
        """How many were late."""
        return sum(record.tardiness_s(self.ended_us) > 0 for record in self.jobs.values())

    @property
    def late_apps(self) -> int:
        """How often trainings made a background application miss its deadline, once for each stage."""
        return sum(record.late_apps for record in self.jobs.values())

    @property
    def epoch_s(self) -> float | None:
        """From begin to end of a job by its epochs, on average over those that ended; None without one."""
        own = [
            (record.ended_us - record.started_us) / record.job.epochs / US_PER_S
            for record in self.jobs.values()
            if record.ended_us is not None and record.started_us is not None
        ]
        return fmean(own) if own else None
