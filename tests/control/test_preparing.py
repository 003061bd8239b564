"""Share, streams and time limit of a preparation: it spares inference."""

from dataclasses import replace

import pytest
from byhand import (
    EVERY,
    LAMBDAS,
    OPTIONS,
    SECOND,
    A,
    B,
    Hand,
    S,
    Wish,
    only,
    opened_1,
    started,
)
from hypothesis import given
from hypothesis import strategies as st

from ekya.control.options import StreamHome
from ekya.control.preparation_timing import LONGEST_PART, time_limit_us
from ekya.control.step import next_due_us
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.configs import GOLDEN_RESOLUTION, InferenceConfig
from ekya.core.units import StreamId
from ekya.core.view import InferenceOption

SPARING = replace(OPTIONS, min_accuracy=0.6, capacity_milli=1000)
"""The second λ reaches 0.64 at 150 thousandths, which are two δ; the first needs three."""


def opening(**changes):
    """Returns the hand and the preparation with which window 1 opens."""
    hand = started(wishes={A: Wish(0), B: Wish(0)}, options=replace(SPARING, **changes))
    (begun,) = only(cmd.BeginPreparation, hand.open_window(1))
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


def test_preparation_with_too_little_time_is_of_fewer_streams():
    _, begun = opening(capacity_milli=400)
    assert [one.stream for one in begun.streams] == [A]


def next_windows(hand, windows):
    """Opens further windows, in which nothing is labelled; returns the streams prepared in each."""
    prepared = []
    for window in range(2, 2 + windows):
        at_us = window * 100 * S
        hand.give(at_us - 1, ev.PreparationEnded(at_us - 1, window - 1))
        begun = only(cmd.BeginPreparation, hand.open_window(window))
        prepared.append([one.stream for command in begun for one in command.streams])
    return prepared


@pytest.mark.parametrize("capacity_milli", [1000, 400])
def test_preparation_that_made_no_labels_is_tried_again(capacity_milli):
    hand, _ = opening(capacity_milli=capacity_milli)
    assert all(next_windows(hand, 4))


def test_window_without_a_serving_stream_prepares_nothing():
    hand = Hand(wishes={A: Wish(0)}, options=SPARING)
    hand.give(0, ev.StreamAdded(0, A, LAMBDAS), ev.WindowOpened(0, 0, 100 * S))
    hand.give(50 * S, ev.StreamLost(50 * S, A, "no signal"))
    turn = hand.open_window(1)
    assert only(cmd.BeginPreparation, turn) == []
    assert not hand.state.fleet.preparing


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


def test_view_of_a_stream_without_profile_has_what_others_lose():
    measured = (InferenceOption(EVERY, 1.0, 310), InferenceOption(SECOND, 0.95, 155))
    hand = opened_1(options=SPARING)
    hand.give(104 * S, ev.InferenceProfiled(104 * S, A, 1, measured, 0.1))
    hand.end_preparation(105)
    own, other = (stream.inference_options for stream in hand.views[-1].streams)
    assert own == measured
    assert other == (LAMBDAS[0], replace(LAMBDAS[1], relative_accuracy=0.95))


FIFTH = InferenceConfig(5, GOLDEN_RESOLUTION)
GOLDEN = (*LAMBDAS, InferenceOption(FIFTH, 0.99, 300))


def answered(golden, capacity_milli, measured="", **changes):
    """Returns the preparation with which window 1 opens where the golden detector answers some streams."""
    options = replace(SPARING, min_accuracy=0.0, capacity_milli=capacity_milli, **changes)
    wishes = {one: Wish(300, FIFTH) if one in golden else Wish(200, SECOND) for one in (A, B)}
    hand = Hand(wishes=wishes, options=options)
    added = [ev.StreamAdded(0, one, GOLDEN) for one in (A, B)]
    profiled = [ev.InferenceProfiled(0, StreamId(one), 0, GOLDEN, 0.1) for one in measured]
    hand.give(0, *added, ev.WindowOpened(0, 0, 100 * S))
    hand.give(S, *profiled)
    (begun,) = only(cmd.BeginPreparation, hand.open_window(1))
    return begun


@pytest.mark.parametrize(
    ("golden", "capacity_milli", "share_milli"),
    [
        ("", 900, 500),
        ("b", 900, 400),
        ("ab", 900, 300),
        ("", 800, 400),
        ("b", 800, 300),
        ("ab", 800, 300),
        ("ab", 600, 200),
    ],
)
def test_preparation_rather_lasts_longer_than_to_stop_the_golden_detector(
    golden, capacity_milli, share_milli
):
    """Down to the share at which the same work ends in the longest time; less only as without."""
    assert answered(golden, capacity_milli).share_milli == share_milli


@pytest.mark.parametrize(
    ("golden", "measured", "streams"),
    [
        ("", "ab", "a"),
        ("a", "ab", "ab"),
        ("b", "ab", "ba"),
        ("ab", "ab", "ab"),
        ("ab", "b", "ba"),
        ("ab", "", "a"),
    ],
)
def test_streams_with_answers_are_prepared_first_and_in_every_window(golden, measured, streams):
    """Beside the one whose turn it is, once their λ are known."""
    begun = answered(golden, 1000, measured, prepared_streams=1)
    assert "".join(one.stream for one in begun.streams) == streams
