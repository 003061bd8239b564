"""Shared parts of the Deep-Edge recipes: compared policies, and the simulation of experiments."""

from dataclasses import dataclass, field, replace

from ekya.core.units import us_to_seconds
from ekya.fleet.fitting.judged import Models
from ekya.fleet.papers.deep_edge.physics import EdgePhysics
from ekya.fleet.papers.deep_edge.workload import EdgeExperiment
from ekya.fleet.papers.registry import PLAYED
from ekya.fleet.policy.assignment import Decision
from ekya.fleet.policy.deep_edge.policy import EdgePolicy
from ekya.fleet.policy.places import Places
from ekya.fleet.policy.registry import Terms
from ekya.fleet.policy.view import FleetView
from ekya.fleet.sim.engine import FleetEngine

COMPARED = {
    "fair": "fair",
    "fair, deadlines kept": "fair-kept",
    "deep-edge": "deep-edge",
    "whole steps": "deep-edge-joint",
    "ours": "deep-edge-joint",
}
"""Names of the policies in figures, and in the registry."""


def policies(paper: Models, ours: Models) -> list[EdgePolicy]:
    """Returns the compared policies; all but the last use the same models and throttle no worker."""
    plain = Terms(estimates=paper.estimates, limits=paper.limits, shares_milli=())
    held = Terms(estimates=ours.estimates, limits=ours.limits)
    made = {shown: PLAYED[name](held if shown == "ours" else plain) for shown, name in COMPARED.items()}
    return [replace(policy, name=shown) for shown, policy in made.items()]


@dataclass(frozen=True, slots=True)
class Epoch:
    """Result of a policy on an experiment.

    Attributes:
        takes_s: average epoch.
        late: applications that missed their deadline.
        workers: number of workers that trained.
    """

    takes_s: float
    late: int
    workers: int


@dataclass(slots=True)
class _Remembers:
    """Wraps a policy and keeps its last decision."""

    policy: EdgePolicy
    last: Decision = field(default_factory=lambda: Decision(()))
    on_events: bool = True
    every_us: None = None

    @property
    def name(self) -> str:
        return self.policy.name

    def decide(self, view: FleetView) -> Decision:
        self.last = self.policy.decide(view)
        return self.last


def play_epoch(experiment: EdgeExperiment, policy: EdgePolicy, places: Places | None = None) -> Epoch:
    """Simulates one experiment with the true costs.

    Args:
        experiment: experiment to simulate.
        policy: policy that decides.
        places: places with the states that the policy sees; by default those of the experiment.

    Raises:
        ValueError: the policy finds no worker.
    """
    asked, physics = _Remembers(policy), EdgePhysics(experiment.truth)
    where = places or experiment.places
    outcome = FleetEngine(asked, physics, [experiment.job], where).run()
    (record,) = outcome.jobs.values()
    if record.ended_us is None:
        raise ValueError(f"{policy.name} finds no worker in experiment {experiment.seed}")
    (assignment,) = asked.last.assignments
    epoch_s = us_to_seconds(record.ended_us) / experiment.job.epochs
    return Epoch(epoch_s, record.late_apps, len(assignment.parts))
