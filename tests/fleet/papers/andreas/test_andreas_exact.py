"""The exact optimum of a scheduling point, compared with the randomised greedy."""

from itertools import product

import numpy as np
import pytest
from andreas_optimum import exact
from andreas_views import job, node, places, state, view, views
from hypothesis import given, settings

from ekya.fleet.policy.andreas.construct import WAITS, Schedules, proxy
from ekya.fleet.policy.andreas.greedy import Andreas
from ekya.fleet.policy.andreas.point import point_of


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
