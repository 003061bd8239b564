"""Deep-Edge's Accuracy Monitor."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekya.fleet.policy.deep_edge.stopping import Outlook, StopRule, outlook

RULE = StopRule(least_gain=0.002)


def rising(epochs, ceiling=0.8, rate=1.0):
    return [ceiling - 0.4 / (1 + rate * epoch) for epoch in range(epochs + 1)]


def test_the_users_number_holds_until_enough_is_seen() -> None:
    assert outlook([0.4], 30, RULE) == Outlook(30, 0.4, "0 of 30 epochs are done")
    assert outlook(rising(2), 30, RULE).epochs == 30


def test_a_curve_that_is_flat_ends_at_once() -> None:
    flat = outlook([0.4, 0.7, 0.7, 0.7, 0.7], 30, RULE)
    assert flat.epochs == 4
    assert "no further epoch" in flat.reason


def test_a_curve_that_rises_goes_on_but_not_for_ever() -> None:
    steep = outlook(rising(4, rate=0.2), 200, RULE)
    assert 4 < steep.epochs < 200
    assert steep.accuracy > rising(4, rate=0.2)[-1]
    assert outlook(rising(4, rate=0.2), 5, RULE).epochs == 5


def test_an_unknown_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no fit straight"):
        outlook(rising(4), 30, StopRule(fit="straight"))
    with pytest.raises(ValueError, match="before the first epoch"):
        outlook([], 30, RULE)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.integers(1, 40), st.integers(5, 60))
def test_never_more_than_planned_and_never_fewer_than_done(accuracies, planned, crops) -> None:
    done = len(accuracies) - 1
    found = outlook(accuracies, planned, RULE, crops)
    assert min(done, planned) <= found.epochs <= planned
    assert 0 <= found.accuracy <= 1
