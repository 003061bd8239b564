"""A thousand jobs on thirty sites: how work and memory of decisions grow, but of baselines.

Of these `oasis` takes half a minute: it plans all slots of all jobs anew.
"""

import tracemalloc
from functools import cache

import pytest
from counting import calls_of
from fleet_views import drawn, made
from loan_cases import crowded

from ekya.fleet.policy.registry import TIERS

SITES, JOBS = 30, 1000
FEW = (JOBS // 8, JOBS // 4, JOBS // 2)
PAPERS = ("andreas", "worth", "okita", "okita-joint", "deep-edge", "deep-edge-joint")
every_policy = pytest.mark.parametrize("name", PAPERS)
every_tier = pytest.mark.parametrize("name", TIERS)
view_of, market_of = cache(drawn), cache(crowded)


def grows_with_its_size_and_no_faster(decide, few, many):
    """Four times as many take four times the calls, and some sorting; sixteen times if each looked at all."""
    assert calls_of(decide, many) < 2 * 4 * calls_of(decide, few)


@every_policy
def test_the_work_of_a_decision_grows_with_the_number_of_jobs_and_no_faster(name) -> None:
    few, many = view_of(SITES, JOBS // 4, 1), view_of(SITES, JOBS, 1)
    decided = []
    policy = made(name, many)
    grows_with_its_size_and_no_faster(lambda view: decided.append(policy.decide(view)), few, many)
    assert decided[0].assignments
    assert len(decided[0].assignments) + len(decided[0].waiting) == JOBS


@every_tier
@pytest.mark.parametrize("uneven", [False, True])
def test_the_work_of_deciding_about_loans_grows_with_the_number_of_offers_and_no_faster(name, uneven) -> None:
    few, many = market_of(JOBS // 4, SITES, uneven), market_of(JOBS, SITES, uneven)
    decided = []
    grows_with_its_size_and_no_faster(lambda market: decided.append(TIERS[name].decide(market)), few, many)
    assert any(one.loans for one in decided)
    assert len(decided[0].loans) + len(decided[0].refused) == JOBS


@every_policy
def test_memory_grows_with_the_number_of_jobs_and_no_faster(name) -> None:
    """Twice as many jobs more take twice as much more; four times as much if it grew by their square."""
    few, some, many = (
        peak_bytes(made(name, view_of(SITES, jobs, 1)).decide, view_of(SITES, jobs, 1)) for jobs in FEW
    )
    assert many - some < 3 * (some - few) + 16_000


@every_tier
def test_memory_grows_with_the_number_of_offers_and_no_faster(name) -> None:
    few, some, many = (peak_bytes(TIERS[name].decide, market_of(jobs, SITES, True)) for jobs in FEW)
    assert many - some < 3 * (some - few) + 16_000


def peak_bytes(decide, of):
    decide(of)
    tracemalloc.start()
    try:
        decide(of)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
