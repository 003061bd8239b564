import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekya.placement.grants import quantise


@given(
    st.dictionaries(st.text("abc-12", max_size=3), st.integers(0, 1500), max_size=8),
    st.integers(1, 1000),
    st.integers(0, 4000),
)
def test_grants_are_steps_within_the_capacity_and_every_loss_is_told(shares, step, capacity):
    grants = quantise(shares, step, capacity)
    granted = dict(grants.shares_milli)
    lost = dict(grants.lost_milli)
    assert list(granted) == list(shares)
    assert all(share % step == 0 and 0 <= share <= 1000 for share in granted.values())
    assert sum(granted.values()) + grants.spare_milli == capacity // step * step
    assert all(granted[job] + lost.get(job, 0) == shares[job] for job in shares)
    assert grants.rounding_cost_milli == sum(shares.values()) - sum(granted.values())


def test_nothing_is_taken_from_what_fits_already():
    assert quantise({"a": 250, "b": 500}, 125, 1000).shares_milli == (("a", 250), ("b", 500))


def test_the_largest_gives_way_first():
    assert quantise({"a": 800, "b": 100}, 100, 500).shares_milli == (("a", 400), ("b", 100))


@pytest.mark.parametrize(("shares", "step", "capacity"), [({"a": -1}, 1, 10), ({}, 0, 10), ({}, 1, -1)])
def test_impossible_requests_are_refused(shares, step, capacity):
    with pytest.raises(ValueError, match=r"step|negative"):
        quantise(shares, step, capacity)
