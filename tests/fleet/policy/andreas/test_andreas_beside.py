"""Schedules built with precomputed tables equal those built without."""

import numpy as np
from andreas_views import job, node, places, state, view, views
from hypothesis import given, settings
from hypothesis import strategies as st

from ekya.fleet.policy.andreas.construct import WAITS, Beside, construct
from ekya.fleet.policy.andreas.point import point_of

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
