"""Deep-Edge's Accuracy Monitor."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekya.fleet.policy.deep_edge.stopping import Outlook, outlook


def rising(epochs, ceiling=0.8, rate=1.0):
    return [ceiling - 0.4 / (1 + rate * epoch) for epoch in range(epochs + 1)]


def test_the_users_number_holds_until_enough_is_seen() -> None:
    assert outlook([0.4], 30) == Outlook(30, 0.4, "0 of 30 epochs are done")
    assert outlook(rising(2), 30).epochs == 30


def test_a_curve_that_is_flat_ends_at_once() -> None:
    flat = outlook([0.4, 0.7, 0.7, 0.7, 0.7], 30)
    assert flat.epochs == 4
    assert "no further epoch" in flat.reason


def test_a_curve_that_rises_goes_on_but_not_for_ever() -> None:
    steep = outlook(rising(4, rate=0.2), 200)
    assert 4 < steep.epochs < 200
    assert steep.accuracy > rising(4, rate=0.2)[-1]
    assert outlook(rising(4, rate=0.2), 5).epochs == 5


def test_a_first_accuracy_is_needed() -> None:
    with pytest.raises(ValueError, match="before the first epoch"):
        outlook([], 30)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.integers(1, 40))
def test_never_more_than_planned_and_never_fewer_than_done(accuracies, planned) -> None:
    done = len(accuracies) - 1
    found = outlook(accuracies, planned)
    assert min(done, planned) <= found.epochs <= planned
    assert 0 <= found.accuracy <= 1
