"""A thousand jobs on a hundred sites: time and memory of a decision, for tiers, and policies but baselines.

Of the baselines `oasis` takes half a minute: it plans all slots of all jobs anew.
"""

import tracemalloc
from functools import cache
from time import process_time

import numpy as np
import pytest
from fleet_views import drawn, made
from loan_cases import crowded

from ekya.fleet.policy.registry import POLICIES
from ekya.fleet.policy.tiers import TIERS

SITES, JOBS = 100, 1000
FEW = (JOBS // 8, JOBS // 4, JOBS // 2)
every_policy = pytest.mark.parametrize("name", POLICIES)
every_tier = pytest.mark.parametrize("name", TIERS)
view_of, market_of = cache(drawn), cache(crowded)


def took_s(work):
    began_s = process_time()
    work()
    return process_time() - began_s


def reference():
    """Sorts and sums arrays and looks up objects, as policies do, for about a quarter of a second."""
    table = np.random.default_rng(1).random((200, 5000))
    for _ in range(4):
        np.cumsum(np.sort(table, axis=1), axis=1)
    found = {}
    for number in range(300_000):
        found[f"{number % 1000}"] = max(found.get(f"{number % 997}", 0.0), number / 3)


@cache
def reference_s():
    return min(took_s(reference) for _ in range(2))


@every_policy
def test_a_decision_takes_less_than_a_second_of_a_machine_where_the_reference_takes_a_quarter(name) -> None:
    view, decided = view_of(SITES, JOBS, 1), []
    policy = made(name, view)
    took = [took_s(lambda: decided.append(policy.decide(view))) for _ in range(2)]
    assert min(took) < 4 * reference_s()
    assert decided[0].assignments
    assert len(decided[0].assignments) + len(decided[0].waiting) == JOBS


@every_tier
@pytest.mark.parametrize("uneven", [False, True])
def test_loans_are_decided_in_a_second_and_a_half_of_such_a_machine(name, uneven) -> None:
    drawn, decided = market_of(JOBS, SITES, uneven), []
    tier = TIERS[name].decide
    assert any(took_s(lambda: decided.append(tier(drawn))) < 6 * reference_s() for _ in range(2))
    assert decided[0].loans
    assert len(decided[0].loans) + len(decided[0].refused) == JOBS


@every_policy
def test_memory_grows_with_the_number_of_jobs_and_no_faster(name) -> None:
    """Twice as many jobs more take twice as much more; four times as much if it grew by their square."""
    few, some, many = (
        peak_bytes(made(name, view_of(30, jobs, 1)).decide, view_of(30, jobs, 1)) for jobs in FEW
    )
    assert many - some < 3 * (some - few) + 16_000


@every_tier
def test_memory_grows_with_the_number_of_offers_and_no_faster(name) -> None:
    few, some, many = (peak_bytes(TIERS[name].decide, market_of(jobs, 30, True)) for jobs in FEW)
    assert many - some < 3 * (some - few) + 16_000


def peak_bytes(decide, of):
    decide(of)
    tracemalloc.start()
    try:
        decide(of)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
