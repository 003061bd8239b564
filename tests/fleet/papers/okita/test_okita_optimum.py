"""The offline optimum: its schedule can be executed, and no policy beats it."""

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
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
from ekya.fleet.policy.assignment import Decision
from ekya.fleet.policy.job import Linear
from ekya.fleet.policy.okita.framework import Okita
from ekya.fleet.policy.okita.joint import OkitaJoint
from ekya.fleet.sim.engine import FleetEngine

SLOT_US = 1_800_000_000
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
