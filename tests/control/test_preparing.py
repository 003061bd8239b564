"""Share and time limit of a preparation: inference keeps its minimum accuracy while it runs."""

from dataclasses import replace

import pytest
from byhand import LAMBDAS, OPTIONS, A, B, Hand, S, Wish
from hypothesis import given
from hypothesis import strategies as st

from ekya.control.options import StreamHome
from ekya.control.preparing import LONGEST_PART, time_limit_us
from ekya.control.step import next_due_us
from ekya.core import commands as cmd
from ekya.core import events as ev

SPARING = replace(OPTIONS, preparation_bursts=False, min_accuracy=0.6, capacity_milli=1000)
"""The second λ reaches 0.64 at 150 thousandths, which are two δ; the first needs three."""


def opening(**changes):
    """Returns the hand and the preparation with which window 1 opens."""
    hand = Hand(wishes={A: Wish(0), B: Wish(0)}, options=replace(SPARING, **changes))
    hand.give(0, ev.StreamAdded(0, A, LAMBDAS), ev.StreamAdded(0, B, LAMBDAS), ev.WindowOpened(0, 0, 100 * S))
    turn = hand.give(100 * S, ev.WindowClosed(100 * S, 0), ev.WindowOpened(100 * S, 1, 200 * S))
    (begun,) = (command for command in turn.commands if isinstance(command, cmd.BeginPreparation))
    return hand, begun


@pytest.mark.parametrize(
    ("capacity_milli", "share_milli", "limit_s"),
    [(1000, 500, 15), (700, 300, 25), (600, 200, 30), (400, 100, 30), (300, 100, 30)],
)
def test_preparation_has_what_inference_leaves_and_lasts_longer(capacity_milli, share_milli, limit_s):
    hand, begun = opening(capacity_milli=capacity_milli)
    assert begun.share_milli == share_milli
    assert hand.views[-1].capacity_milli == capacity_milli - share_milli
    assert next_due_us(hand.state.fleet, hand.options) == (100 + limit_s) * S


def test_preparation_in_a_burst_has_all_its_share():
    hand, begun = opening(capacity_milli=700, preparation_bursts=True)
    assert begun.share_milli == 500
    assert next_due_us(hand.state.fleet, hand.options) == 115 * S


def test_preparation_with_too_little_time_is_of_fewer_streams():
    _, begun = opening(capacity_milli=400)
    assert [one.stream for one in begun.streams] == [A]


def test_preparation_where_no_share_reaches_the_minimum_has_all_its_share():
    _, begun = opening(capacity_milli=700, min_accuracy=0.9)
    assert begun.share_milli == 500


def test_preparation_spares_the_streams_of_its_own_gpu():
    homes = (StreamHome(A, 0), StreamHome(B, 1))
    _, begun = opening(capacity_milli=2000, preparation_share_milli=900, homes=homes)
    assert begun.share_milli == 800


@given(share_milli=st.integers(1, 500), limit_s=st.integers(1, 100))
def test_time_limit_leaves_time_for_the_same_work_or_is_the_longest(share_milli, limit_s):
    options = replace(OPTIONS, preparation_us=limit_s * S)
    limit_us = time_limit_us(share_milli, options)
    longest_us = max(limit_s * S, int(LONGEST_PART * options.window_us))
    assert limit_s * S <= limit_us <= longest_us
    assert limit_us == longest_us or abs(limit_us * share_milli - limit_s * S * 500) <= 500
