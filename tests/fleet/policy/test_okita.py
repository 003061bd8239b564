"""Okita, its baselines and our policy: constraints in all workloads, and algorithms by their listings."""

from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from okita_testbed import TESTBED, of_testbed

from ekya.fleet.papers.okita.fixed import OkitaFifo, fair_numbers
from ekya.fleet.papers.okita.workload import (
    CLIFF,
    GROWING,
    LINEAR,
    OkitaPhysics,
    OkitaSetting,
    simulation,
)
from ekya.fleet.papers.registry import OF_OKITA, PLAYED
from ekya.fleet.papers.worlds import okita_terms
from ekya.fleet.policy.job import Left
from ekya.fleet.policy.okita import framework
from ekya.fleet.policy.okita.framework import Okita, by_priority, osf, tentative
from ekya.fleet.policy.okita.ground import Ground, OkitaTask, room, room_beside
from ekya.fleet.policy.okita.joint import filled_up, give_out, link_costs
from ekya.fleet.policy.okita.placing import (
    OkitaWeights,
    least_transfer_costs,
    most_workers,
    place,
    quality,
    this_slot,
    transfer_costs,
    transfers,
    workloads,
)
from ekya.fleet.policy.view import FleetView, JobState
from ekya.fleet.sim.engine import FleetEngine

SLOT_US = 1_800_000_000


def made(name, world):
    return PLAYED[name](okita_terms(world))


POLICIES = {name: partial(made, name) for name in OF_OKITA}

worlds = st.builds(
    lambda sites, jobs, cost, seed: simulation(OkitaSetting(sites, jobs, 5, cost=cost), seed),
    st.integers(1, 5),
    st.integers(1, 5),
    st.sampled_from([GROWING, LINEAR, CLIFF]),
    st.integers(0, 10_000),
)


class Watched(OkitaPhysics):
    """Okita's physics, which also records its stages as (slot, job, assignment)."""

    seen: list

    def stage(self, view, state, assignment, others):
        self.seen.append((view.now_us // self.slot_us, state.job.name, assignment))
        return super().stage(view, state, assignment, others)


def watched():
    laws = Watched.__new__(Watched)
    object.__setattr__(laws, "slot_us", SLOT_US)
    object.__setattr__(laws, "seen", [])
    return laws


def play(policy, world):
    laws = watched()
    outcome = FleetEngine(policy, laws, world.jobs, world.places, seed=7).run()
    return outcome, laws.seen


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=12)
@given(worlds)
def test_all_constraints_are_kept_to_the_end(name, world) -> None:
    outcome, seen = play(POLICIES[name](world), world)
    assert not outcome.unfinished
    for job in world.jobs:
        mine = [(slot, assignment) for slot, who, assignment in seen if who == job.name]
        sent = dict.fromkeys(job.chunks, 0)
        for _, assignment in mine:
            for (origin, _), chunks in assignment.moves.items():
                sent[origin] += chunks
        assert sent == job.chunks
        record = outcome.jobs[job.name]
        # (2e): a job ends with its last active slot, and never starts before it arrives.
        assert record.ended_us == (mine[-1][0] + 1) * SLOT_US
        assert all(earlier < later for (earlier, _), (later, _) in pairwise(mine))
        assert mine[0][0] * SLOT_US >= job.arrives_us


def view_of(world, now_slots=6):
    states = tuple(JobState(job, Left.all_of(job)) for job in world.jobs)
    return FleetView(now_slots * SLOT_US, states, world.places, 3)


@pytest.mark.parametrize("name", ["okita-fifo", "drf"])
def test_fifo_and_drf_never_change_a_deployment(name) -> None:
    world = simulation(OkitaSetting(sites=5, jobs=8, slots=5), 1)
    deployed = {}
    for _, job, assignment in play(POLICIES[name](world), world)[1]:
        what = {(part.node, part.workers) for part in assignment.parts}, assignment.parameter_server
        assert deployed.setdefault(job, what) == what


def test_fifo_lets_nobody_overtake() -> None:
    world = simulation(OkitaSetting(sites=4, jobs=12, slots=4), 2)
    outcome, _ = play(OkitaFifo(SLOT_US, 1.0), world)
    starts = [record.started_us for record in outcome.jobs.values()]
    assert starts == sorted(starts) and len(set(starts)) > 4


def test_drf_gives_equal_dominant_shares_where_everybody_can_use_them() -> None:
    world = simulation(OkitaSetting(sites=8, jobs=4, slots=1), 5)
    ground, tasks = arrays(view_of(world))
    fair = fair_numbers(ground, tasks)
    shares = [share for _, share in fair.values()]
    capacity = ground.capacity.sum(axis=0)
    steps = [(task.worker / capacity).max() for task in tasks]
    hungry = [
        share
        for task, share in zip(tasks, shares, strict=True)
        if fair[task.job.name][0] < min(task.workers_at_most(), most_workers(task, ground.capacity))
    ]
    assert hungry and max(shares) <= min(hungry) + 2 * max(steps)
    used = sum(task.parameter_server + fair[task.job.name][0] * task.worker for task in tasks)
    assert (used <= capacity).all()


def arrays(view):
    ground = Ground.from_view(view)
    return ground, [OkitaTask.from_state(ground, state, view.now_us, SLOT_US) for state in view.jobs]


data = st.integers(2, 6).flatmap(
    lambda sites: st.tuples(
        st.lists(st.integers(0, 30), min_size=sites, max_size=sites),
        st.lists(st.integers(0, 60), min_size=sites, max_size=sites),
        st.integers(0, 1000),
    )
)


@settings(max_examples=80)
@given(data)
def test_dta_sends_what_is_missing_and_never_more_than_there_is(drawn) -> None:
    left, can_train, seed = np.array(drawn[0]), np.array(drawn[1]), drawn[2]
    ground, _ = arrays(view_of(simulation(OkitaSetting(len(left), 1, 5), seed)))
    order = np.random.default_rng(seed).permutation(len(left))
    loads = workloads(left, can_train[None], order)
    assert loads.sum() == min(left.sum(), can_train.sum())
    assert (loads[0] <= can_train).all() and (loads[0] >= np.minimum(left, can_train)).all()
    moves = transfers(ground, left, loads[0])
    assert (moves >= 0).all()
    assert (moves.sum(axis=1) <= left).all()
    assert (moves.sum(axis=0) == loads[0]).all()
    cost = (moves * ground.mb_cost).sum()
    assert transfer_costs(ground, left, loads) == pytest.approx([cost])
    assert least_transfer_costs(ground, left, loads)[0] <= cost + 1e-9
    now = this_slot(moves, can_train // 2)
    assert (now <= moves).all() and (now.sum(axis=0) == np.minimum(moves.sum(axis=0), can_train // 2)).all()


def listed_dta(ground, left, loads):
    """Algorithm 3 as printed."""
    sites, over = range(len(left)), left - loads
    moves = np.zeros((len(left), len(left)), dtype=int)
    for site in sites:
        if over[site] < 0:
            for source in sorted(sites, key=lambda other: ground.mb_cost[other, site]):
                if over[source] > 0:
                    missing = -over[site] - moves[:, site].sum()
                    moves[source, site] = min(over[source] - moves[source].sum(), missing)
    return moves


@settings(max_examples=40)
@given(data)
def test_dta_is_the_listing_s(drawn) -> None:
    left, can_train, seed = np.array(drawn[0]), np.array(drawn[1]), drawn[2]
    ground, _ = arrays(view_of(simulation(OkitaSetting(len(left), 1, 5), seed)))
    loads = workloads(left, can_train[None], np.arange(len(left)))[0]
    moves = transfers(ground, left, loads)
    np.fill_diagonal(moves, 0)
    assert (moves == listed_dta(ground, left, loads)).all()


def exchange_cost(ground, task, workers, site):
    """Returns the cost of exchanging parameters in a slot: Σ_r q^{r s} π_i y_i^r."""
    return task.job.model_mb * (workers @ ground.mb_cost[:, site])


def listed_pa(ground, task, free, count):
    """Algorithm 2 as printed, for one slot; returns its cost and y, or None."""
    best = None
    value = quality(ground, task, free, OkitaWeights())
    order = sorted(range(len(free)), key=lambda site: -value[site])
    for server in range(len(free)):
        if (free[server] < task.parameter_server).any():
            continue
        workers = np.zeros(len(free), dtype=int)
        for site in order:
            there = free[site] - (task.parameter_server if site == server else 0)
            asked = task.worker > 0
            fit = int(np.floor(there[asked] / task.worker[asked]).min())
            workers[site] = min(fit, count - workers.sum())
        cost = exchange_cost(ground, task, workers, server)
        if workers.sum() >= count and (best is None or cost <= best[0] + 1e-12):
            best = cost, workers
    return best


@settings(max_examples=40)
@given(worlds, st.integers(0, 1000))
def test_pa_is_the_listing_s_and_never_above_what_is_free(world, seed) -> None:
    ground, tasks = arrays(view_of(world))
    task = tasks[0]
    free = np.floor(ground.capacity * np.random.default_rng(seed).uniform(0.3, 1.0, ground.capacity.shape))
    counts = np.arange(1, min(40, task.workers_at_most()) + 1)
    found = place(ground, task, free, counts, OkitaWeights())
    for case, count in enumerate(counts):
        listed = listed_pa(ground, task, free, count)
        site = int(found.parameter_servers[case])
        assert (listed is None) == (site < 0) == (not np.isfinite(found.slot_costs[case]))
        if listed is not None:
            workers = found.workers(np.array([case]), np.array([count]))[0]
            assert workers.sum() == count
            assert (task.resources_taken(workers, site) <= free).all()
            assert found.slot_costs[case] == pytest.approx(listed[0])
            assert exchange_cost(ground, task, workers, site) == pytest.approx(listed[0])
    fit = np.isfinite(found.slot_costs)
    assert fit.sum() == min(len(counts), most_workers(task, free))


@settings(max_examples=20)
@given(worlds)
def test_what_osf_leaves_out_is_never_cheaper(world) -> None:
    ground, tasks = arrays(view_of(world))
    for task in tasks:
        whole = tentative(ground, task, ground.capacity, OkitaWeights(), None)
        each = [
            osf(ground, task, ground.capacity, np.array([count]), OkitaWeights())
            for count in range(1, task.workers_at_most() + 1)
        ]
        assert whole.cost == pytest.approx(min(one.cost for one in each if one is not None))


def test_priority_is_equation_4() -> None:
    world = simulation(OkitaSetting(sites=3, jobs=4, slots=5), 3)
    _, tasks = arrays(view_of(world))
    pressing = [task.job.waiting.per_s * task.waited for task in tasks]
    done = [replace(task, left=task.left // 2) for task in tasks[:1]] + tasks[1:]
    value = {
        task.job.name: weight / max(pressing) - task.total / task.chunks.sum()
        for task, weight in zip(done, pressing, strict=True)
    }
    in_order = [task.job.name for task in by_priority(done, OkitaWeights())]
    assert in_order == sorted(value, key=value.get, reverse=True)
    half_done = by_priority(done, OkitaWeights(waited=0.0))
    assert half_done[0].job.name == tasks[0].job.name


def test_with_a_piecewise_cost_the_nearest_deadline_is_first_and_one_that_has_passed_last() -> None:
    world = simulation(OkitaSetting(sites=3, jobs=4, slots=5, cost=CLIFF), 3)
    passed = [
        replace(job, arrives_us=slot * SLOT_US) for job, slot in zip(world.jobs, (0, 8, 7, 9), strict=True)
    ]
    jobs = [
        replace(job, waiting=replace(job.waiting, due_s=5 * 1800.0), arrives_us=job.arrives_us)
        for job in passed
    ]
    _, tasks = arrays(view_of(replace(world, jobs=tuple(jobs)), now_slots=10))
    assert [task.job.name for task in by_priority(tasks, OkitaWeights(left=0.0))] == [
        jobs[place].name for place in (2, 1, 0, 3)
    ]


def test_quality_is_equation_6() -> None:
    world = simulation(OkitaSetting(sites=3, jobs=1, slots=5), 3)
    ground, tasks = arrays(view_of(world))
    task = replace(tasks[0], left=tasks[0].chunks // 2)
    free = ground.capacity / 4
    value = quality(ground, task, free, OkitaWeights(2.0, 1.0, 3.0, 0.5, 1.5))
    links = ground.mb_cost.sum(axis=1) * 100 / 2
    assert value == pytest.approx(3 * 0.25 - 0.5 * links + 1.5 * task.left / task.chunks)


def test_room_is_what_every_resource_leaves() -> None:
    world = simulation(OkitaSetting(sites=3, jobs=1, slots=5), 3)
    _, tasks = arrays(view_of(world))
    task = replace(
        tasks[0], worker=np.array([0.0, 1.0, 4.0, 2.0]), parameter_server=np.array([1.0, 0.0, 4.0, 0.0])
    )
    free = np.array([[5.0, 3.0, 16.0, 9.0], [0.0, 3.0, 16.0, 9.0], [5.0, 3.0, 6.0, 9.0]])
    assert room(free, task).tolist() == [3, 3, 1]
    assert room_beside(free, task).tolist() == [3, -1, 0]


def test_the_testbed_is_scheduled_too() -> None:
    world = of_testbed(TESTBED, 0)
    outcome = FleetEngine(
        Okita(world.setting.slot_us), OkitaPhysics(world.setting.slot_us), world.jobs, world.places
    ).run()
    assert not outcome.unfinished
    reasons = Okita(SLOT_US).decide(view_of(world)).assignments
    assert all("workers on" in assignment.reason for assignment in reasons)


@settings(max_examples=60)
@given(data)
def test_ours_gives_out_all_data_within_the_time_that_sites_have(drawn) -> None:
    left, seed = np.array(drawn[0]), drawn[2]
    world = simulation(OkitaSetting(len(left), 1, 5), seed)
    ground, tasks = arrays(view_of(world))
    task = replace(tasks[0], left=left)
    rng = np.random.default_rng(seed)
    room_for = np.array(drawn[1])
    room_for[rng.integers(len(left))] += max(0, left.sum() - room_for.sum())
    a_worker = int(task.job.chunks_per_slot)
    room_for = -(-room_for // a_worker) * a_worker
    server = int(rng.integers(len(left)))
    unit = rng.uniform(1, 9, (1, len(left), len(left)))
    moves = give_out(left, unit, room_for[None])[0]
    assert (moves >= 0).all() and (moves.sum(axis=1) == left).all() and (moves.sum(axis=0) <= room_for).all()
    filled = filled_up(ground, task, moves, server, int(room_for[server]))
    assert (filled >= 0).all() and (filled.sum(axis=1) == left).all()
    assert (filled.sum(axis=0) <= room_for).all()
    before, after = link_costs(ground, task, np.array([moves, filled]), np.array([server, server]))
    assert after <= before + 1e-9


def test_ours_leaves_data_where_that_is_cheapest() -> None:
    unit = np.array([[[1.0, 2.0, 9.0], [5.0, 9.0, 6.0], [4.0, 3.0, 9.0]]])
    moves = give_out(np.array([4, 5, 6]), unit, np.array([[8, 6, 7]]))[0]
    # Site 0 keeps its data. Sites 1 and 2 have the same regret, so site 1 sends first.
    assert moves.tolist() == [[4, 0, 0], [4, 0, 1], [0, 6, 0]]


def test_a_job_without_room_for_a_worker_costs_no_search(monkeypatch) -> None:
    """So that a call with a thousand jobs takes as long as those that are placed."""
    world = simulation(OkitaSetting(sites=3, jobs=40, slots=1), 5)
    searched = []
    monkeypatch.setattr(framework, "osf", lambda *asked: searched.append(asked[1]) or osf(*asked))
    decision = Okita(SLOT_US).decide(view_of(world))
    roomless = {
        name for name, why in decision.waiting.items() if why.startswith("a worker and its parameter")
    }
    assert len(roomless) > 20
    assert not roomless & {task.job.name for task in searched}
