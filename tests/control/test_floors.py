"""Minimum shares: no plan starves a stream, from one pool or on its home GPU."""

from dataclasses import replace

import pytest
from byhand import LAMBDAS, NEEDS, OPTIONS, A, B, Hand, S, Wish

from ekya.control.options import StreamHome
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.units import StreamId

C = StreamId("c")
AGED = tuple(replace(option, age_us=option.config.every * 500_000) for option in LAMBDAS)
FREE = replace(NEEDS, fixed_shares=False, fixed_gamma=False)


def given(hand, gpus=(None, None, None)):
    hand.wishes = {A: Wish(1000), B: Wish(0), C: Wish(0)}
    added = [ev.StreamAdded(0, stream, AGED, gpu) for stream, gpu in zip((A, B, C), gpus, strict=True)]
    turn = hand.give(0, *added, ev.WindowOpened(0, 0, 100 * S))
    return {one.stream: one.share_milli for one in turn.commands if isinstance(one, cmd.SetInference)}


@pytest.mark.parametrize("homes", [(), (0, 1, 1), (1, 0, 0), (0, 0, 0)])
def test_step_keeps_floors_under_any_plan(homes):
    at_home = tuple(StreamHome(stream, gpu) for stream, gpu in zip((A, B, C), homes, strict=False))
    capacity_milli = 2000 if homes else 1000
    options = replace(OPTIONS, quantum_milli=50, capacity_milli=capacity_milli, homes=at_home)
    shares = given(Hand(options=options, needs=FREE))
    # Unclaimed capacity is given out afterwards, where it helps.
    assert min(shares[B], shares[C]) >= 150
    assert sum(shares.values()) <= capacity_milli
    if len(set(homes)) <= 1:
        assert shares[A] == 700


def test_step_keeps_floors_of_streams_that_are_added_on_a_gpu():
    options = replace(OPTIONS, quantum_milli=50, capacity_milli=2000, homes=(StreamHome(A, 0),))
    shares = given(Hand(options=options, needs=FREE), (None, 0, 0))
    assert min(shares[B], shares[C]) >= 150
    assert sum(shares.values()) <= 1000


def test_step_leaves_fixed_shares_below_floors():
    shares = given(Hand(needs=NEEDS))
    assert shares[A] == 1000
    assert shares.get(B, 0) == shares.get(C, 0) == 0
