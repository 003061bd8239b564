"""Decisions of ANDREAS, the first-principle methods and our policy; tables; the optimum."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from andreas_optimum import exact
from andreas_views import given as gets
from andreas_views import job, node, places, state, view, views
from hypothesis import given, settings
from hypothesis import strategies as st

from ekya.fleet.papers.registry import EDF, FIFO, PRIORITY
from ekya.fleet.policy.andreas.construct import WAITS, Beside, Schedules, construct, proxy
from ekya.fleet.policy.andreas.greedy import Andreas, drawn_configs, swapped
from ekya.fleet.policy.andreas.point import point_of
from ekya.fleet.policy.andreas.worth import Worth


@settings(max_examples=25)
@given(views(), st.integers(1, 300), st.integers(0, 300))
def test_more_iterations_never_make_the_proxy_worse(seen, few, more) -> None:
    point = point_of(seen)
    values = [
        Andreas(iterations=count).best_schedule(point, np.random.default_rng(seen.seed))[2]
        for count in (few, few + more)
    ]
    assert values[1] <= values[0]


@pytest.mark.parametrize("policy", [FIFO, EDF, PRIORITY], ids=["fifo", "edf", "priority"])
@settings(max_examples=25)
@given(views())
def test_first_principle_methods_never_touch_who_has_started(policy, seen) -> None:
    decided = gets(policy.decide(seen))
    for one in seen.jobs:
        if one.assignment is not None:
            part = one.assignment.parts[0]
            assert decided[one.job.name] == (part.node, part.gpus)


TWO = places(node("big", "fast", 2), node("little", "slow", 1))


def test_a_job_takes_the_cheapest_configuration_that_is_in_time() -> None:
    # 600 s on one fast GPU, 382 s on two, 1080 s on the slow GPU, the cheapest.
    for due_s, expected in ((2000.0, ("little", 1)), (700.0, ("big", 1)), (500.0, ("big", 2))):
        seen = view([state(job("a", due_s=due_s))], TWO)
        assert gets(FIFO.decide(seen)) == {"a": expected}


def test_a_job_that_is_late_anyhow_takes_the_fastest_there_is() -> None:
    late = state(job("a", due_s=100.0))
    assert gets(FIFO.decide(view([late], TWO))) == {"a": ("big", 2)}
    busy = state(job("b"), on=("big", 1))
    assert gets(FIFO.decide(view([busy, late], TWO)))["a"] == ("big", 1)


def test_the_three_methods_differ_in_who_goes_first() -> None:
    one = places(node("only", "fast", 1))
    first = job("first", due_s=9000.0)
    soon = replace(job("soon", due_s=1000.0), arrives_us=1)
    dear = replace(job("dear", due_s=8000.0, weight=5e-4), arrives_us=2)
    seen = view([state(one_job) for one_job in (first, soon, dear)], one, now_s=1)
    for policy, goes in ((FIFO, "first"), (EDF, "soon"), (PRIORITY, "dear")):
        assert [*gets(policy.decide(seen))] == [goes]


@pytest.mark.parametrize("policy", [Andreas(), Worth()], ids=["andreas", "worth"])
def test_who_is_pressed_gets_the_gpu_of_who_is_not(policy) -> None:
    one = places(node("only", "fast", 1))
    easy = state(job("easy", due_s=90000.0), on=("only", 1))
    pressed = state(job("pressed", due_s=650.0))
    decision = policy.decide(view([easy, pressed], one))
    assert gets(decision) == {"pressed": ("only", 1)}
    assert "easy" in decision.waiting
    assert gets(FIFO.decide(view([easy, pressed], one))) == {"easy": ("only", 1)}


def test_ours_lets_alone_what_goes_well_and_moves_what_pays() -> None:
    where = places(node("one", "fast", 2), node("two", "fast", 2))
    long = [state(job(name, 100, due_s=90000.0), on=(on, 1)) for name, on in (("a", "one"), ("b", "two"))]
    # Both jobs on one node share its base cost while both run.
    assert len({name for name, _ in gets(Worth().decide(view(long, where))).values()}) == 1
    short = [replace(one, left=replace(one.left, epochs=1)) for one in long]
    assert gets(Worth().decide(view(short, where))) == {"a": ("one", 1), "b": ("two", 1)}


def test_ours_gives_slow_gpus_to_those_they_slow_least() -> None:
    where = places(node("fast", "fast", 1), node("slow", "slow", 1))
    states = [state(job(name, due_s=500.0, slower=slower)) for name, slower in (("a", 1.2), ("b", 3.0))]
    assert gets(Worth().decide(view(states, where))) == {"a": ("slow", 1), "b": ("fast", 1)}


def test_ours_sends_the_short_one_first_where_all_are_late() -> None:
    where = places(node("only", "fast", 1))
    states = [state(job(name, epochs, due_s=1.0)) for name, epochs in (("long", 100), ("short", 10))]
    assert [*gets(Worth().decide(view(states, where)))] == ["short"]
    assert [*gets(EDF.decide(view(states, where)))] == ["long"]


def test_a_swap_is_one_of_neighbours_and_keeps_all_jobs() -> None:
    swaps = np.array([[True, False, False, False], [False] * 4])
    assert swapped(swaps).tolist() == [[1, 2, 0, 3], [0, 1, 2, 3]]
    swaps = np.random.default_rng(1).random((50, 7)) < 0.5
    for row, order in zip(swaps, swapped(swaps).tolist(), strict=True):
        jobs = list(range(7))
        for place in (0, 2, 4, 1, 3, 5):
            if row[jobs[place]]:
                jobs[place : place + 2] = jobs[place + 1], jobs[place]
        assert order == jobs


def test_configurations_are_drawn_by_one_over_their_cost() -> None:
    point = point_of(view([state(job("a", due_s=9000.0))], TWO))
    uniform = np.random.default_rng(1).random((20000, 1))
    shares = np.bincount(drawn_configs(point, uniform)[:, 0], minlength=3) / 20000
    odds = 1 / point.cost[0]
    assert shares == pytest.approx(odds / odds.sum(), abs=0.01)


MANY = 30


def both(point, seed):
    """Returns both constructions for the same orders and wishes."""
    rng = np.random.default_rng(seed)
    jobs = len(point.states)
    order = np.array([rng.permutation(jobs) for _ in range(MANY)])
    wished = rng.integers(len(point.gpus), size=(MANY, jobs))
    return Beside(point).construct(order, wished), construct(point, order, wished)


@settings(max_examples=100)
@given(views(most_jobs=12), st.integers(0, 10**6))
def test_they_are_the_same_job_by_job(seen, seed) -> None:
    quick, plain = both(point_of(seen), seed)
    assert (quick.config == plain.config).all()
    assert (quick.node == plain.node).all()


def test_they_are_the_same_where_nodes_are_alike_and_fill_up() -> None:
    where = places(*(node(f"n{place:02}", "fast" if place % 2 else "slow", 4) for place in range(12)))
    states = [state(job(f"j{place}", 1 + place % 9, due_s=200.0 + 40 * place)) for place in range(60)]
    quick, plain = both(point_of(view(states, where)), 1)
    assert (quick.config == plain.config).all()
    assert (quick.node == plain.node).all()
    # Some jobs run, some wait and nodes are shared, so that the comparison is not trivial.
    assert (quick.config == WAITS).any()
    assert max(np.bincount(quick.node[0][quick.node[0] != WAITS])) > 1


def value_of(point, config, at):
    return float(proxy(point, Schedules(np.array([config]), np.array([at])), 100.0, 600.0)[0])


@settings(max_examples=12)
@given(views(most_jobs=4))
def test_exact_value_matches_proxy_and_greedy_is_never_better(seen) -> None:
    point = point_of(seen)
    best = exact(point, 100.0, 600.0)
    assert best.value == pytest.approx(value_of(point, best.config, best.node), rel=1e-6, abs=1e-6)
    found = Andreas(iterations=250).best_schedule(point, np.random.default_rng(1))[2]
    assert best.value <= found + 1e-6 * max(1.0, abs(found))


def test_exact_plan_is_best_of_all_schedules() -> None:
    where = places(node("big", "fast", 2), node("little", "slow", 1))
    states = [state(job("a", 10, due_s=650.0)), state(job("b", 20, due_s=700.0, weight=5e-4))]
    point = point_of(view(states, where))
    ways = [(WAITS, WAITS), *((c, 0) for c in (0, 1)), (2, 1)]
    assert [point.shelves[int(number)].kind for number in point.shelf] == ["fast", "fast", "slow"]
    values = []
    for one, other in product(ways, repeat=2):
        used = [0, 0]
        for config, at in (one, other):
            if config != WAITS:
                used[at] += int(point.gpus[config])
        if used[0] <= 2 and used[1] <= 1:
            values.append(value_of(point, [one[0], other[0]], [one[1], other[1]]))
    assert exact(point, 100.0, 600.0).value == pytest.approx(min(values), rel=1e-9)


def test_exact_value_charges_node_only_to_first_finished_job() -> None:
    where = places(node("big", "fast", 2))
    point = point_of(view([state(job(name, n, due_s=9e5)) for name, n in (("a", 10), ("b", 20))], where))
    both = value_of(point, [0, 0], [0, 0])
    short = [one.job.name for one in point.states].index("a")
    assert both == pytest.approx(point.cost[short, 0])
