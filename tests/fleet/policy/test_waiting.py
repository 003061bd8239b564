"""Costs of a job's waiting."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekya.fleet.policy.job import Cliff, Growing, Linear, Tardiness

COSTS = (Tardiness(5.0, 2.0), Growing(20.0, 0.25), Linear(30.0, 50.0), Cliff(20.0, 300.0, 4.0))


@pytest.mark.parametrize("cost", COSTS)
@given(st.floats(0, 50), st.floats(0, 50))
def test_no_cost_falls_with_time(cost, one, other) -> None:
    assert cost.cost_after(min(one, other)) <= cost.cost_after(max(one, other))


def test_they_are_the_papers() -> None:
    tardiness, growing, linear, cliff = COSTS
    assert (tardiness.cost_after(5.0), tardiness.cost_after(7.0)) == (0.0, 4.0)
    assert growing.cost_after(4.0) == pytest.approx(20.0 * math.e)
    assert linear.cost_after(2.0) == 110.0
    assert (cliff.cost_after(3.9), cliff.cost_after(4.0), cliff.per_s) == (20.0, 300.0, 300.0)
