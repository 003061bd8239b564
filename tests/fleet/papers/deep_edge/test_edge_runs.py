"""Deep-Edge's policies in its simulated world, with exact models: results are those they expect."""

from dataclasses import replace

import pytest
from deep_edge_search import Force, as_it_is

from ekya.fleet.papers.deep_edge import laws, testbed
from ekya.fleet.papers.deep_edge.laws import NANO, TX2
from ekya.fleet.papers.deep_edge.workload import POINTS, EdgePhysics, edge_experiment
from ekya.fleet.papers.registry import Fair
from ekya.fleet.policy.deep_edge.estimates import EdgeLimits
from ekya.fleet.policy.deep_edge.heuristic import Heuristic
from ekya.fleet.policy.deep_edge.joint import Joint
from ekya.fleet.policy.deep_edge.task import EdgePolicy
from ekya.fleet.policy.places import JobName
from ekya.fleet.sim.engine import FleetEngine

S = 1_000_000


def policy(solver):
    return EdgePolicy("edge", solver, laws, EdgeLimits(2, 32, 0.97))


def play(experiment, solver, jobs=None):
    places = as_it_is(experiment.places, experiment.truth)
    jobs = [experiment.job] if jobs is None else jobs
    return FleetEngine(policy(solver), EdgePhysics(experiment.truth), jobs, places).run()


def one(outcome):
    (record,) = outcome.jobs.values()
    return record


@pytest.mark.parametrize("seed", range(2020, 2030))
def test_who_knows_keeps_every_deadline_and_is_faster_than_equal_shards(seed) -> None:
    experiment = edge_experiment(seed)
    paper = one(play(experiment, Heuristic()))
    fair = one(play(experiment, Fair(keeps_deadlines=True)))
    ours = one(play(experiment, Joint()))
    assert (paper.late_apps, fair.late_apps, ours.late_apps) == (0, 0, 0)
    assert paper.ended_us < fair.ended_us
    assert ours.ended_us < 1.01 * paper.ended_us


def test_exhaustive_search_bounds_what_any_finds() -> None:
    for seed in (2020, 2021):
        experiment = edge_experiment(seed, kinds=(TX2, NANO, NANO))
        best = one(play(experiment, Force())).ended_us
        for solver in (Heuristic(), Joint(shares_milli=(1000,)), Fair(keeps_deadlines=True)):
            assert one(play(experiment, solver)).ended_us >= 0.999 * best


def test_a_second_training_waits_for_machines() -> None:
    experiment = edge_experiment(2021)
    later = replace(experiment.job, name=JobName("later"), arrives_us=1 * S)
    outcome = play(experiment, Heuristic(), jobs=[experiment.job, later])
    first, second = outcome.jobs.values()
    assert second.started_us == first.ended_us


def test_reasons_say_who_trains_what_and_who_does_not() -> None:
    seen = []

    class Reads(EdgePolicy):
        def decide(self, view):
            seen.append(EdgePolicy.decide(self, view))
            return seen[-1]

    experiment = edge_experiment(2020)
    places = as_it_is(experiment.places, experiment.truth)
    reads = Reads("edge", Heuristic(), laws)
    FleetEngine(reads, EdgePhysics(experiment.truth), [experiment.job], places).run()
    (assignment,) = seen[0].assignments
    assert assignment.parameter_server == "server"
    assert assignment.reason.startswith("of 3855 samples nano-1 ")
    assert "so that an epoch takes" in assignment.reason


def test_deciders_fit_their_models(monkeypatch) -> None:
    monkeypatch.setattr(testbed, "POINTS", dict.fromkeys(POINTS, 120))
    (policy,) = testbed.deciders(("deep-edge",)).values()
    assert policy.solver == Heuristic()
    assert 0 < policy.limits.exec_error < 0.5
