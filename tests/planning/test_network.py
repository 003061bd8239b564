import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekya.planning.schedulers.network import (
    CELLULAR,
    LinkOrder,
    Network,
    arrivals_s,
    sample_megabits,
    transfers_done_s,
)

orders = st.sampled_from(list(LinkOrder))
transfers = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 50)), max_size=6)


def test_the_papers_example_takes_432_seconds():
    """§6.5: eight streams, 400 s, 160 Mb each up over 5.1 Mbps and 398 Mb each down over 17.5 Mbps."""
    assert sample_megabits(400) == pytest.approx(160)
    cellular = Network(CELLULAR.uplink_mbps, CELLULAR.downlink_mbps, LinkOrder.SHARED)
    assert arrivals_s(cellular, [160.0] * 8) == pytest.approx([432.9] * 8, abs=0.1)


def test_in_turn_the_first_models_come_down_while_the_last_videos_go_up():
    done = arrivals_s(CELLULAR, [160.0] * 8)
    one_up, one_down = 160 / 5.1, 398 / 17.5
    assert done == pytest.approx([(place + 1) * one_up + one_down for place in range(8)])
    assert done[-1] < 400


def test_more_bandwidth_is_sooner():
    last = [max(arrivals_s(net, [160.0] * 8)) for net in (CELLULAR, Network(8.5, 15.0), Network(10.2, 35.0))]
    assert last == sorted(last, reverse=True)


def test_who_joins_shares_from_then_on():
    """Alone for 2 of its 4 s, then at half the rate for 4 s; the other has 1 of its 3 s left then."""
    assert transfers_done_s([0, 2], [4, 3], 1.0, LinkOrder.SHARED) == pytest.approx((6, 7))
    assert transfers_done_s([0, 2], [4, 3], 1.0, LinkOrder.IN_TURN) == pytest.approx((4, 7))
    assert transfers_done_s([5, 0], [1, 1], 1.0, LinkOrder.SHARED) == pytest.approx((6, 1))


@given(transfers, st.integers(1, 9), orders)
def test_the_link_carries_no_more_than_it_can_and_never_rests_while_it_need_not(jobs, mbps, order):
    ready, sizes = [one for one, _ in jobs], [two for _, two in jobs]
    done = transfers_done_s(ready, sizes, mbps, order)
    busy_until = 0.0
    for at, size in sorted(zip(ready, sizes, strict=True)):
        busy_until = max(busy_until, at) + size / mbps
    assert max(done, default=0.0) == pytest.approx(busy_until)
    for at, size, end in zip(ready, sizes, done, strict=True):
        assert end >= at + size / mbps - 1e-9
    for limit in done:
        carried = sum(size for size, end in zip(sizes, done, strict=True) if end <= limit)
        assert carried <= mbps * limit + 1e-6


@given(transfers, st.integers(1, 9))
def test_in_turn_is_no_later_on_average_where_all_are_alike(jobs, mbps):
    ready = [one for one, _ in jobs]
    means = [
        sum(transfers_done_s(ready, [10.0] * len(ready), mbps, order))
        for order in (LinkOrder.IN_TURN, LinkOrder.SHARED)
    ]
    assert means[0] <= means[1] + 1e-6
