"""Rates, delays, losses and partitions of the wires between hosts, without a clock."""

import pytest
from host_wires import BURST_BYTES, Counts, Link, Wires

PACKET = bytes(1500)
BURST = BURST_BYTES // 1500
MS = 1e-3
"""At 12 Mbit/s a packet takes a millisecond."""


def _arrivals_ms(wires):
    """Returns when each packet arrived, and where."""
    arrived = []
    while (next_s := wires.next_s()) is not None:
        arrived += [(round(next_s / MS, 6), target) for target, _ in wires.arrivals(next_s)]
    return arrived


def test_after_a_burst_packets_keep_to_the_rate():
    wires = Wires(2, Link(rate_mbit_s=12, delay_ms=20, loss=0), seed=0)
    for _ in range(BURST + 3):
        wires.send(1, 2, PACKET, 5.0)
    assert _arrivals_ms(wires) == [(5020, 2)] * BURST + [(5021, 2), (5022, 2), (5023, 2)]


def test_a_wire_saves_no_more_than_a_burst_while_it_is_idle():
    wires = Wires(2, Link(rate_mbit_s=12, delay_ms=0, loss=0), seed=0)
    for now_s in (5.0, 9.0):
        for _ in range(BURST + 1):
            wires.send(1, 2, PACKET, now_s)
    times = [time_ms for time_ms, _ in _arrivals_ms(wires)]
    assert times == [5000] * BURST + [5001] + [9000] * BURST + [9001]


def test_what_would_wait_too_long_is_dropped():
    wires = Wires(2, Link(rate_mbit_s=12, delay_ms=0, loss=0, queue_ms=30.5), seed=0)
    for _ in range(BURST + 50):
        wires.send(1, 2, PACKET, 5.0)
    assert len(_arrivals_ms(wires)) == BURST + 30
    counts = wires.counts()[1, 2]
    assert (counts.sent, counts.arrived, counts.dropped) == (BURST + 50, BURST + 30, 20)


def test_each_direction_of_each_pair_has_its_own_rate():
    wires = Wires(3, Link(rate_mbit_s=12, delay_ms=0, loss=0), seed=0)
    wires.set_link(1, 3, Link(rate_mbit_s=6, delay_ms=0, loss=0))
    for _ in range(BURST + 1):
        for pair in ((1, 2), (2, 1), (1, 3), (3, 1)):
            wires.send(*pair, PACKET, 5.0)
    last = sorted(_arrivals_ms(wires))[-4:]
    assert last == [(5001, 1), (5001, 2), (5002, 1), (5002, 3)]


@pytest.mark.parametrize("loss", [0.0, 0.01, 0.5, 1.0])
def test_losses_are_as_many_as_asked_for(loss):
    wires = Wires(2, Link(rate_mbit_s=1e6, delay_ms=0, loss=loss), seed=3)
    for number in range(20_000):
        wires.send(1, 2, PACKET, float(number))
    arrived = len(_arrivals_ms(wires))
    counts = wires.counts()[1, 2]
    assert counts == Counts(20_000, arrived, 20_000 - arrived, arrived_bytes=1500 * arrived)
    assert counts.lost == pytest.approx(20_000 * loss, abs=4 * (20_000 * loss * (1 - loss)) ** 0.5)


def test_a_partition_takes_what_is_under_way_and_what_follows_until_it_heals():
    wires = Wires(3, Link(rate_mbit_s=12, delay_ms=20, loss=0), seed=0)

    def all_send(now_s):
        for pair in ((1, 2), (2, 1), (2, 3)):
            wires.send(*pair, PACKET, now_s)

    all_send(1.0)
    wires.partition(1)
    all_send(2.0)
    wires.heal(1)
    all_send(3.0)
    assert _arrivals_ms(wires) == [(1020, 3), (2020, 3), (3020, 2), (3020, 1), (3020, 3)]
    assert [wires.counts()[pair].cut for pair in ((1, 2), (2, 1), (2, 3))] == [2, 2, 0]


def test_packets_for_no_host_vanish():
    wires = Wires(2, Link(), seed=0)
    wires.send(1, 1, PACKET, 0.0)
    wires.send(1, 9, PACKET, 0.0)
    assert wires.next_s() is None
