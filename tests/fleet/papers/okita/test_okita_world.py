"""Okita's workloads, the laws of its world, and its offline optimum."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from okita_testbed import TESTBED, of_testbed
from optimum.okita import optimum
from optimum.programme import UnsolvedError

from ekya.fleet.papers.okita.fixed import Drf, OkitaFifo
from ekya.fleet.papers.okita.oasis import Oasis
from ekya.fleet.papers.okita.workload import (
    CLIFF,
    GROWING,
    LINEAR,
    OkitaPhysics,
    OkitaSetting,
    OkitaWorkload,
    simulation,
)
from ekya.fleet.policy.assignment import Decision, JobAssignment, NodePart
from ekya.fleet.policy.job import Growing, Left, Linear, TrainJob
from ekya.fleet.policy.okita.framework import Okita
from ekya.fleet.policy.okita.joint import OkitaJoint
from ekya.fleet.policy.places import Node, Places
from ekya.fleet.policy.view import FleetView, JobState
from ekya.fleet.sim.engine import BrokenConstraintError, FleetEngine

SLOT_US = 1_800_000_000
SMALL = OkitaSetting(sites=6, jobs=20, slots=30)


def test_the_table_of_parameters_is_kept() -> None:
    world = simulation(OkitaSetting(), 0)
    assert (len(world.places.nodes), len(world.jobs)) == (50, 100)
    costs = np.array([*world.places.link_cost.values()])
    assert costs.size == 50 * 49
    assert 0.02 <= costs.min() < 0.025 and 0.075 < costs.max() <= 0.08
    chunks = np.array([[*job.chunks.values()] for job in world.jobs])
    assert (chunks.min(), chunks.max()) == (10, 20)
    for values, low, high in (
        ([job.chunk_mb for job in world.jobs], 20, 60),
        ([job.model_mb for job in world.jobs], 30, 575),
        ([job.chunks_per_slot for job in world.jobs], 5, 15),
        ([job.worker["gpu"] for job in world.jobs], 0, 4),
        ([job.worker["vcpu"] for job in world.jobs], 1, 10),
        ([job.parameter_server["ram_gb"] for job in world.jobs], 2, 32),
        ([job.parameter_server["disk_gb"] for job in world.jobs], 5, 10),
    ):
        assert low <= min(values) < low + 0.1 * (high - low) + 1
        assert high - 0.1 * (high - low) - 1 < max(values) <= high
    slots = [job.arrives_us // SLOT_US for job in world.jobs]
    assert 0 <= min(slots) < 15 and 135 < max(slots) < 150


@pytest.mark.parametrize("cost", ["growing", LINEAR, CLIFF])
def test_costs_are_of_the_last_slot_s_index(cost) -> None:
    for job in simulation(replace(SMALL, cost=cost), 1).jobs:
        at_once, five = (job.waiting.cost_after(1800.0 * slots) for slots in (1, 6))
        if cost == "growing":
            assert 20 <= at_once <= 100
            assert five == pytest.approx(at_once * np.exp(1.25))
        elif cost == LINEAR:
            assert 50 <= at_once <= 200
            assert 100 <= five - at_once <= 500
        else:
            assert 20 <= at_once <= 100 and 300 <= five <= 400
            assert job.waiting.cost_after(1800.0 * 3) == at_once


def test_a_smaller_workload_has_the_same_jobs_and_sites() -> None:
    large, small = simulation(SMALL, 3), simulation(replace(SMALL, jobs=5, sites=4), 3)
    assert simulation(SMALL, 3) == large != simulation(SMALL, 4)
    for one, other in zip(small.jobs, large.jobs, strict=False):
        assert one == replace(other, chunks={site: other.chunks[site] for site in one.chunks})
    assert all(large.places.nodes[name] == node for name, node in small.places.nodes.items())


def test_the_testbed_has_table_2() -> None:
    world = of_testbed(TESTBED, 0)
    assert len(world.places.nodes) == 9
    assert {sum(job.chunks.values()) for job in world.jobs} <= {27, 115, 150}
    for job in world.jobs:
        assert max(job.chunks.values()) - min(job.chunks.values()) <= 1
        assert job.arrives_us < 10 * TESTBED.slot_us
        assert job.chunk_mb == 2.0


JOB = TrainJob(
    "j",
    0,
    20,
    Growing(10.0, 0.25 / 1800),
    {"a": 12, "b": 4},
    10.0,
    100.0,
    worker={"gpu": 1, "vcpu": 2},
    parameter_server={"vcpu": 3},
    chunks_per_slot=5.0,
)
PLACES = Places(
    {name: Node(name, name, "kind", 2, capacity={"gpu": 2, "vcpu": 6}) for name in ("a", "b")},
    {("a", "b"): 0.02, ("b", "a"): 0.03},
)
VIEW = FleetView(0, (JobState(JOB, Left.all_of(JOB)),), PLACES)
GOOD = JobAssignment(
    "j",
    (NodePart("a", workers=1, chunks=5), NodePart("b", workers=2, chunks=7)),
    "why",
    "a",
    {("a", "a"): 5, ("b", "b"): 4, ("a", "b"): 3},
)
WORLD = OkitaPhysics(SLOT_US)


def test_a_slot_trains_what_is_sent_and_pays_for_what_crosses_a_link() -> None:
    assert WORLD.faults(VIEW, [GOOD]) == []
    stage = WORLD.stage(VIEW, VIEW.jobs[0], GOOD, [])
    assert stage.takes_us == SLOT_US
    assert stage.left.chunks == {"a": 4, "b": 0}
    # Three chunks go from a to b, and two workers of b use the parameter server at a.
    assert stage.moved_mb == 3 * 10 + 2 * 100
    assert stage.link_cost == pytest.approx(0.02 * 30 + 0.03 * 200)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"moves": {("a", "a"): 5, ("b", "b"): 7}}, r"\(2a\) b sends 7 chunks of j and has 4"),
        ({"moves": {("a", "a"): 5, ("b", "b"): 4}}, r"\(2a\) b trains 7 chunks of j and is sent 4"),
        ({"moves": {**GOOD.moves, ("b", "a"): -1}}, r"\(2a\) b sends -1"),
        (
            {"parts": (NodePart("a", workers=2, chunks=5), NodePart("b", workers=1, chunks=7))},
            r"\(2b\) .*time for 5",
        ),
        ({"parameter_server": None}, r"\(2c\) j is active without"),
        ({"parameter_server": "b"}, r"\(2d\) b has 6 vcpu, and 7 are given out"),
        (
            {"parts": (NodePart("a", workers=1), NodePart("b", workers=1)), "moves": {}},
            r"\(2e\) j is active and trains nothing",
        ),
        ({"parts": (NodePart("a", workers=3, chunks=12),), "moves": {("a", "a"): 12}}, r"\(2d\) a has 2 gpu"),
    ],
)
def test_every_constraint_is_checked_in_every_slot(change, told) -> None:
    class Says:
        name, on_events, every_us = "says", False, SLOT_US

        def decide(self, view):
            return Decision((replace(GOOD, **change),))

    with pytest.raises(BrokenConstraintError, match=told):
        FleetEngine(Says(), WORLD, [JOB], PLACES).run()


GAP = 1e-3


class Plays:
    """Plays a planned schedule."""

    name, on_events, every_us = "plays", False, SLOT_US

    def __init__(self, schedule):
        self.schedule = schedule

    def decide(self, view):
        now = self.schedule.get(view.now_us // SLOT_US, ())
        there = {assignment.job for assignment in now}
        return Decision(now, {s.job.name: "not yet" for s in view.jobs if s.job.name not in there})


def cost(policy, world):
    return FleetEngine(policy, OkitaPhysics(SLOT_US), world.jobs, world.places).run().total_cost


def small(sites, jobs, seed, function=GROWING):
    """Returns a workload with a third of the data, for speed, and slots enough for the optimum to end."""
    world = simulation(OkitaSetting(sites, jobs, 2, cost=function), seed)
    jobs = tuple(
        replace(job, chunks={site: chunks // 3 for site, chunks in job.chunks.items()}) for job in world.jobs
    )
    return OkitaWorkload(replace(world.setting, slots=8), jobs, world.places)


@settings(max_examples=8)
@given(st.integers(1, 2), st.integers(1, 3), st.integers(0, 500), st.sampled_from([GROWING, LINEAR, CLIFF]))
@example(3, 2, 2, LINEAR)
def test_optimum_is_playable_and_no_policy_costs_less(sites, jobs, seed, function) -> None:
    world = small(sites, jobs, seed, function)
    policies = (Okita(SLOT_US), OkitaJoint(SLOT_US), OkitaFifo(SLOT_US), Drf(SLOT_US), Oasis(SLOT_US))
    costs = [cost(policy, world) for policy in policies]
    best = optimum(world, min(costs), gap=GAP)
    assert best.bound <= best.cost * (1 + 1e-9)
    assert best.cost <= best.bound * (1 + GAP) + 1e-6
    assert min(costs) >= best.bound - 1e-6
    # The engine checks all constraints and computes the cost independently.
    assert cost(Plays(best.schedule), world) == pytest.approx(best.cost, rel=1e-6)


def test_optimum_single_job_ends_as_soon_as_workers_allow() -> None:
    world = small(1, 1, 0)
    job = replace(world.jobs[0], waiting=Linear(1.0 / 1800, 0.0), chunks_per_slot=1.0)
    world = replace(world, jobs=(job,))
    node = world.places.nodes["site-000"]
    beside = [
        (node.capacity[name] - job.parameter_server.get(name, 0.0)) // needs
        for name, needs in job.worker.items()
        if needs
    ]
    slots = -(-sum(job.chunks.values()) // min(beside))
    assert optimum(world, 1e6).cost == pytest.approx(slots)


def test_optimum_without_feasible_schedule_raises() -> None:
    world = small(1, 1, 0)
    job = replace(world.jobs[0], parameter_server={"gpu": 100.0})
    with pytest.raises(UnsolvedError, match="no schedule of 1 jobs"):
        optimum(replace(world, jobs=(job,)), 1e6)
