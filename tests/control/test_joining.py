"""Cameras that join, are lost and come back during a run: their shares, plans and preparations."""

from dataclasses import replace

import pytest
from byhand import LAMBDAS, A, B, S, Wish, only, opened_1, started
from byhand import OPTIONS as OPTIONS_BY_HAND
from script import CAM_1, CAM_2, CAM_3, OPTIONS, three_cameras
from whole_runs import assert_journal_replays, run

from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.units import StreamId
from ekya.planning.schedulers.registry import make_scheduler

C = StreamId("c")
EVERYBODY = ("ekya", "thief", "uniform", "no-retrain")


def asked_in(turn):
    (preparation,) = only(cmd.BeginPreparation, turn)
    return {asked.stream: bool(asked.inference) for asked in preparation.streams}


def joined(at_us):
    """Stream ``c`` joins in window 1, which is being prepared."""
    hand = opened_1()
    hand.wishes[C] = Wish(200)
    return hand, hand.give(at_us, ev.StreamAdded(at_us, C, LAMBDAS))


def test_joining_stream_is_planned_immediately():
    _, turn = joined(130 * S)
    assert cmd.SetInference(C, LAMBDAS[1].config, 200, turn.plan.epoch) in turn.commands


def test_joining_stream_is_prepared_next_window():
    hand, _ = joined(130 * S)
    hand = replace(hand, options=replace(hand.options, windows=9))
    assert asked_in(hand.open_window(2)) == {A: False, B: False, C: True}
    assert asked_in(hand.open_window(3)) == {A: False, B: False, C: False}
    hand.open_window(4)
    assert asked_in(hand.open_window(5)) == {A: True, B: True, C: False}
    assert asked_in(hand.open_window(6)) == {A: False, B: False, C: True}


def test_joining_at_border_is_not_prepared_yet():
    hand = started()
    hand.wishes[C] = Wish(200)
    closed, opened = ev.WindowClosed(100 * S, 0), ev.WindowOpened(100 * S, 1, 200 * S)
    turn = hand.give(100 * S, ev.StreamAdded(100 * S, C, LAMBDAS), closed, opened)
    assert asked_in(turn) == {A: True, B: True}
    assert C in {stream.stream for stream in hand.views[-1].streams}
    assert asked_in(hand.open_window(2)) == {A: False, B: False, C: True}


def shares_in(plan):
    return {
        one.stream: one.inference_share_milli + one.retrain_share_milli for one in plan.phases[0].assignments
    }


@pytest.mark.parametrize("scheduler", EVERYBODY)
def test_lost_share_goes_to_others_until_camera_returns(scheduler):
    lost, back = ev.StreamLost(34 * S, CAM_1, "no signal"), ev.StreamBack(46 * S, CAM_1)
    done = run(scheduler, misfortunes=(lost, back))
    plans = [(turn.now_us, turn.plan) for turn in done.turns if turn.plan is not None]
    meanwhile = [plan for at_us, plan in plans if 34 * S <= at_us < 46 * S]
    assert meanwhile
    assert all(set(shares_in(plan)) == {CAM_2, CAM_3} for plan in meanwhile)
    before = next(plan for at_us, plan in reversed(plans) if at_us < 34 * S)
    others = [sum(shares_in(plan)[stream] for stream in (CAM_2, CAM_3)) for plan in (before, meanwhile[0])]
    assert (others[0] < others[1]) or scheduler == "uniform"
    assert set(shares_in(next(plan for at_us, plan in plans if at_us >= 46 * S))) == {CAM_1, CAM_2, CAM_3}


@pytest.mark.parametrize("scheduler", EVERYBODY)
def test_run_with_late_camera_keeps_shares_and_replays(scheduler, tmp_path):
    first, second, third = three_cameras()
    options = replace(OPTIONS, last_join_us=40 * S)
    late = replace(third, joins_us=40 * S)
    path = tmp_path / "journal.jsonl"
    done = run(scheduler, cameras=(first, second, late), options=options, path=path)
    asked = {one.window: {s.stream for s in one.streams} for one in done.commands(cmd.BeginPreparation)}
    if asked:
        everybody = {CAM_1, CAM_2, CAM_3}
        if make_scheduler(scheduler).needs.labels:
            assert asked == {1: {CAM_1, CAM_2}, 2: everybody, 3: everybody}
        else:
            assert asked == {1: {CAM_1, CAM_2}, 2: {CAM_3}}, "λ are profiled every few windows"
    added = next(turn for turn in done.turns if any(event.t_us == 40 * S for event in turn.events))
    assert CAM_3 in shares_in(added.plan)
    assert_journal_replays(done, path)


def test_window_without_time_prepares_streams_alternately():
    hand = opened_1(options=replace(OPTIONS_BY_HAND, windows=9, prepared_streams=1))
    asked = [asked_in(hand.open_window(window)) for window in range(2, 8)]
    assert asked == [{B: True}, {A: False}, {B: False}, {A: True}, {B: True}, {A: False}]


def test_lambdas_are_profiled_before_labels_once_where_inference_lacks_share():
    """Each stream reaches a_MIN with two quanta, which leaves one for the preparation."""
    scarce = replace(OPTIONS_BY_HAND, windows=9, min_accuracy=0.6, capacity_milli=500)
    hand = started(options=scarce)
    seen = []
    for window in (1, 2, 3):
        (begun,) = only(cmd.BeginPreparation, hand.open_window(window))
        (asked,) = begun.streams
        seen.append((begun.share_milli, asked.stream, bool(asked.inference), asked.inference_first))
        t_us = window * 100 * S + S
        hand.give(t_us, ev.InferenceProfiled(t_us, asked.stream, window, LAMBDAS, 0.1))
    assert seen == [(100, A, True, True), (100, B, True, True), (100, A, False, False)]
