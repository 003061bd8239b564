"""What the recipes of Deep-Edge have in common: models from data points, and experiments played."""

import time
from dataclasses import dataclass, field

from ekya.core.units import us_to_seconds
from ekya.fleet.fitting.boosted import BoostedEstimates
from ekya.fleet.fitting.judged import Judged, judged, judged_server, reckoned, split
from ekya.fleet.policy.assignment import Decision
from ekya.fleet.policy.deep_edge.estimates import EdgeEstimates, EdgeLimits
from ekya.fleet.policy.deep_edge.fair import Fair
from ekya.fleet.policy.deep_edge.heuristic import Heuristic
from ekya.fleet.policy.deep_edge.joint import Joint
from ekya.fleet.policy.deep_edge.policy import EdgePolicy
from ekya.fleet.policy.deep_edge.profile import ProfilePoint
from ekya.fleet.policy.places import Places
from ekya.fleet.policy.view import FleetView
from ekya.fleet.sim.deep_edge.devices import BATCH_MAX, BATCH_MIN, MEM_LIMIT, NANO, TX2
from ekya.fleet.sim.deep_edge.physics import EdgePhysics
from ekya.fleet.sim.deep_edge.workload import (
    DEADLINE_S,
    POINTS,
    EdgeExperiment,
    profile_points,
    server_points,
)
from ekya.fleet.sim.engine import FleetEngine

KNOWN = EdgeLimits(BATCH_MIN, BATCH_MAX, MEM_LIMIT)
"""Limits of whom estimates never mislead."""

HELD_MILLI = tuple(range(100, 1000, 100))
"""Shares at which ours profiles as many points again as the paper has."""


@dataclass(frozen=True, slots=True)
class Models:
    """What was learned, and how sure one can be of it.

    Attributes:
        estimates: of both kinds of machines.
        limits: with their errors.
        rows: of Table I.
    """

    estimates: EdgeEstimates
    limits: EdgeLimits
    rows: tuple[Judged, ...]


def learned(held_back: bool) -> Models:
    """From the paper's number of data points, split as the paper has them.

    Args:
        held_back: whether as many points again are there of trainings that are held back.
    """
    train, tests = list[ProfilePoint](), dict[str, list[ProfilePoint]]()
    for kind in (NANO, TX2):
        sets = [profile_points(kind, POINTS[kind])]
        if held_back:
            sets.append(profile_points(kind, POINTS[kind], shares_milli=HELD_MILLI))
        halves = [split(points) for points in sets]
        train += [point for own, _ in halves for point in own]
        tests[kind] = [point for _, own in halves for point in own]
    estimates = BoostedEstimates(train)
    rows = [
        row
        for kind, test in tests.items()
        for row in judged(estimates, [point for point in train if point.kind == kind], test)
    ]
    limits = reckoned(estimates, [point for test in tests.values() for point in test], DEADLINE_S, KNOWN)
    return Models(estimates, limits, (*rows, *judged_server(*split(server_points()))))


def policies(paper: Models, ours: Models) -> list[EdgePolicy]:
    """Everybody who is compared; all but the last by the same models."""
    return [
        EdgePolicy("fair", Fair(), paper.estimates, paper.limits),
        EdgePolicy("fair, deadlines kept", Fair(keeps_deadlines=True), paper.estimates, paper.limits),
        EdgePolicy("deep-edge", Heuristic(), paper.estimates, paper.limits),
        EdgePolicy("whole steps", Joint(shares_milli=(1000,)), paper.estimates, paper.limits),
        EdgePolicy("ours", Joint(), ours.estimates, ours.limits),
    ]


@dataclass(frozen=True, slots=True)
class Epoch:
    """What a policy made of an experiment.

    Attributes:
        takes_s: the average epoch.
        late: applications that missed their deadline.
        workers: how many trained.
        decide_s: what the decision took here.
    """

    takes_s: float
    late: int
    workers: int
    decide_s: float


@dataclass(slots=True)
class _Remembers:
    """A policy whose last decision can be looked at."""

    policy: EdgePolicy
    last: Decision = field(default_factory=lambda: Decision(()))
    every_us: None = None

    @property
    def name(self) -> str:
        return self.policy.name

    def decide(self, view: FleetView) -> Decision:
        self.last = self.policy.decide(view)
        return self.last


def played(experiment: EdgeExperiment, policy: EdgePolicy, places: Places | None = None) -> Epoch:
    """One experiment in the world as it is.

    Args:
        experiment: which.
        policy: who decides.
        places: with the states that it sees; those of the experiment where there are none.

    Raises:
        ValueError: the policy finds nobody who could train.
    """
    asked, physics = _Remembers(policy), EdgePhysics(experiment.truth)
    where = places or experiment.places
    outcome = FleetEngine(asked, physics, [experiment.job], where, timer=time.perf_counter).run()
    (record,) = outcome.jobs.values()
    if record.ended_us is None:
        raise ValueError(f"{policy.name} finds no worker in experiment {experiment.seed}")
    (assignment,) = asked.last.assignments
    epoch_s = us_to_seconds(record.ended_us) / experiment.job.epochs
    return Epoch(epoch_s, record.late_apps, len(assignment.parts), sum(outcome.decide_s))
