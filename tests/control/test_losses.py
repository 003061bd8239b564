"""Deaths, losses and ends: the commands that follow, and who gets the share."""

from dataclasses import replace

import pytest
from byhand import (
    INFERENCE,
    LAMBDAS,
    NEEDS,
    OPTIONS,
    RETRAINING,
    A,
    B,
    S,
    Wish,
    labels,
    only,
    opened_1,
    progress,
    retraining,
    started,
)

from ekya.control.step import loop_events_due, next_due_us
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core import requests as rq
from ekya.core.stream_faults import DEATHS_WITHIN_US, Faults, Status
from ekya.core.units import JobId


def test_dead_worker_restarts_and_others_get_its_share():
    hand = started(wishes={A: Wish(1000), B: Wish(1000)})
    died = hand.give(10 * S, ev.WorkerDied(10 * S, A, INFERENCE, "killed"))
    assert died.commands == (cmd.RestartWorker(A, INFERENCE),)
    assert [stream.stream for stream in hand.views[-1].streams] == [B]
    back = hand.give(12 * S, ev.WorkerBack(12 * S, A, INFERENCE))
    assert back.commands == (cmd.SetInference(A, LAMBDAS[0].config, 1000, plan_epoch=3),)


def test_job_of_lost_stream_keeps_its_share():
    hand = retraining(share_milli=400)
    hand.give(120 * S, ev.WorkerDied(120 * S, A, INFERENCE, "killed"))
    assert hand.views[-1].capacity_milli == 1600


def test_dead_retraining_is_not_retried_in_window():
    hand = retraining()
    turn = hand.give(120 * S, ev.WorkerDied(120 * S, A, RETRAINING, "killed"))
    assert turn.commands == (cmd.RestartWorker(A, RETRAINING),)
    assert hand.views[-1].capacity_milli == 2000
    assert hand.views[-1].streams[0].retrain_options == ()
    assert hand.open_window(2).commands[0] == cmd.BeginPreparation(
        2, 500, tuple(cmd.PrepareStream(stream, (), ()) for stream in (A, B)), hand.state.epoch
    )


def test_deaths_together_count_once():
    """The MPS daemon of a GPU dies with all processes on that GPU; the stream is not at fault."""
    hand = started(wishes={A: Wish(1000), B: Wish(1000)})
    for round_s in (10, 30):
        for at_us, role in ((round_s * S, INFERENCE), (round_s * S + 100_000, RETRAINING)):
            died = hand.give(at_us, ev.WorkerDied(at_us, A, role, "killed"))
            assert cmd.RestartWorker(A, role) in died.commands
        hand.give((round_s + 5) * S, ev.WorkerBack((round_s + 5) * S, A, INFERENCE))
    assert len(hand.stream().faults.deaths_us) == 2
    hand.give(50 * S, ev.WorkerDied(50 * S, A, INFERENCE, "killed by itself"))
    assert hand.stream().faults.set_aside is not None


def test_three_deaths_set_stream_aside():
    hand = retraining()
    hand.give(120 * S, progress(120 * S, 1, 0.4))
    for number in range(2):
        at_us = (130 + number) * S
        died = hand.give(at_us, ev.WorkerDied(at_us, A, INFERENCE, "killed"))
        assert died.commands[0] == cmd.RestartWorker(A, INFERENCE)
        hand.give(at_us, ev.WorkerBack(at_us, A, INFERENCE))
    third = hand.give(140 * S, ev.WorkerDied(140 * S, A, INFERENCE, "killed again"))
    (aside,) = only(cmd.SetAside, third)
    assert aside.stream == A
    assert "killed again" in aside.reason
    assert only(cmd.RestartWorker, third) == []
    fourth = hand.give(141 * S, ev.WorkerDied(141 * S, A, RETRAINING, "killed with it"))
    assert (fourth.commands, len(hand.stream().faults.deaths_us)) == ((), 3)
    assert (hand.stream().status, hand.stream().job) == (Status.SET_ASIDE, None)
    assert [stream.stream for stream in hand.views[-1].streams] == [B]
    assert hand.views[-1].capacity_milli == 2000
    turn = hand.open_window(2)
    assert [asked.stream for asked in only(cmd.BeginPreparation, turn)[0].streams] == [B]
    assert turn.plan is not None
    assert {command.stream for command in turn.commands if hasattr(command, "stream")} <= {B}


RESTARTS = tuple(cmd.RestartWorker(A, role) for role in ev.Role)


def set_aside(hand, at_s):
    """Has workers of a stream die three times, the last time at ``at_s``."""
    for at_us in ((at_s - 2) * S, (at_s - 1) * S, at_s * S):
        hand.give(at_us, ev.WorkerDied(at_us, A, INFERENCE, "killed"))
    assert hand.stream().status is Status.SET_ASIDE


def next_window(hand):
    """Opens the next window as the loop does by itself; returns what it commands for the first stream."""
    now_us = hand.state.fleet.window_end_us
    turn = hand.give(now_us, *loop_events_due(hand.state.fleet, now_us, hand.options))
    return tuple(command for command in turn.commands if command in RESTARTS)


def endless(readmit_after_us):
    options = replace(OPTIONS, windows=None, readmit_after_us=readmit_after_us)
    return started(wishes={A: Wish(1000), B: Wish(1000)}, options=options)


def test_stream_set_aside_is_readmitted_after_a_time_that_doubles():
    hand = endless(150 * S)
    set_aside(hand, 50)
    assert (next_window(hand), next_window(hand)) == ((), RESTARTS), "150 s after 50 s, when a window opens"
    assert hand.stream().status is Status.RESTARTING
    assert next_window(hand) == (), "it has been readmitted already"
    hand.give(310 * S, ev.WorkerBack(310 * S, A, INFERENCE))
    assert hand.stream().status is Status.SERVING
    set_aside(hand, 350)
    assert [next_window(hand) for _ in range(4)] == [(), (), (), RESTARTS], "300 s after 350 s"


def test_readmission_never_waits_longer_than_an_hour():
    after_us = 600 * S
    faults = Faults(set_aside="killed", asides_us=(0, S, 2 * S, 3 * S, 4 * S))
    assert faults.readmitted_us(after_us) == 4 * S + 3600 * S


def test_stream_of_a_run_stays_set_aside():
    hand = endless(None)
    set_aside(hand, 50)
    assert {next_window(hand) for _ in range(40)} == {()}


def test_operator_resumes_a_stream_set_aside_at_once():
    hand = endless(150 * S)
    set_aside(hand, 50)
    turn = hand.give(60 * S, rq.StreamPaused(60 * S, A, paused=False))
    assert turn.commands[:2] == RESTARTS
    assert hand.stream().status is Status.RESTARTING


def test_run_that_goes_on_does_not_start_workers_again_that_it_has_started():
    """A worker that is replaced after the plan would have neither λ nor share."""
    hand = endless(150 * S)
    set_aside(hand, 50)
    at_us = 60 * S
    turn = hand.give(at_us, ev.StreamReadmitted(at_us, A), ev.WorkerBack(at_us, A, INFERENCE))
    assert only(cmd.RestartWorker, turn) == []
    assert hand.stream().status is Status.SERVING
    assert [command.stream for command in only(cmd.SetInference, turn)] == [A]


def test_recording_that_ended_is_not_readmitted():
    hand = endless(150 * S)
    set_aside(hand, 50)
    hand.give(51 * S, ev.StreamEnded(51 * S, A))
    assert [next_window(hand) for _ in range(3)] == [(), (), ()]
    assert hand.stream().status is Status.ENDED


def test_rare_deaths_never_set_stream_aside():
    hand = started(wishes={A: Wish(1000), B: Wish(1000)})
    for number in range(1, 8):
        at_us = number * DEATHS_WITHIN_US // 2
        died = hand.give(at_us, ev.WorkerDied(at_us, A, INFERENCE, "killed"))
        assert only(cmd.RestartWorker, died) == [cmd.RestartWorker(A, INFERENCE)]
        hand.give(at_us + S, ev.WorkerBack(at_us + S, A, INFERENCE))
    assert hand.stream().status is Status.SERVING


@pytest.mark.parametrize("role", [INFERENCE, RETRAINING])
def test_dead_worker_of_ended_stream_is_ignored(role):
    hand = started()
    hand.give(10 * S, ev.StreamEnded(10 * S, A))
    assert hand.give(11 * S, ev.WorkerDied(11 * S, A, role, "killed")).commands == ()
    assert hand.stream().status is Status.ENDED


def test_lost_camera_is_neither_restarted_nor_prepared():
    hand = started()
    lost = hand.give(10 * S, ev.StreamLost(10 * S, A, "no signal"))
    assert lost.commands == ()
    turn = hand.open_window(1)
    assert [asked.stream for asked in only(cmd.BeginPreparation, turn)[0].streams] == [B]


def test_ended_stream_stops_retraining_and_frees_share():
    hand = retraining(share_milli=400)
    hand.give(120 * S, progress(120 * S, 1, 0.501))
    turn = hand.give(121 * S, ev.StreamEnded(121 * S, A))
    assert turn.commands == (cmd.StopRetraining(A, JobId(1)),)
    assert hand.stream().job is None
    assert hand.views[-1].capacity_milli == 2000
    late = hand.give(122 * S, progress(121 * S, 2, 0.9), ev.RetrainFinished(122 * S, A, JobId(1), 3.0))
    assert late.commands == ()


def unlabelled():
    """Window 1 has no labels, since the micro-profiler was away when it opened."""
    hand = opened_1()
    hand.end_preparation(100)
    return hand


def test_window_without_profiler_is_prepared_on_return():
    hand = unlabelled()
    back = hand.give(140 * S, ev.ProfilerBack(140 * S))
    (begun,) = only(cmd.BeginPreparation, back)
    assert (begun.window, [asked.stream for asked in begun.streams]) == (1, [A, B])
    assert hand.views[-1].capacity_milli == 1500
    assert next_due_us(hand.state.fleet, hand.options) == 155 * S, "it has as long as any other"
    hand.give(145 * S, labels(145 * S, A), labels(145 * S, B))
    ended = hand.give(155 * S, *loop_events_due(hand.state.fleet, 155 * S, hand.options))
    assert only(cmd.EndPreparation, ended) == [cmd.EndPreparation(1)]
    assert hand.views[-1].streams[0].retrain_options != ()
    turn = hand.open_window(2)
    assert next_due_us(turn.state.fleet, hand.options) == 215 * S


@pytest.mark.parametrize("labels", [True, False])
def test_window_that_a_loading_profiler_refused_has_its_lambdas_on_return(labels):
    hand = started(needs=replace(NEEDS, labels=labels))
    hand.give(99 * S, ev.ProfilerDown(99 * S))
    hand.open_window(1)
    hand.end_preparation(100)
    (begun,) = only(cmd.BeginPreparation, hand.give(104 * S, ev.ProfilerBack(104 * S)))
    assert [(asked.labels, bool(asked.inference)) for asked in begun.streams] == 2 * [(labels, True)]


def test_returned_profiler_skips_labelled_or_late_window():
    for hand, back_us in ((started(), 20 * S), (retraining(), 140 * S), (unlabelled(), 185 * S)):
        assert only(cmd.BeginPreparation, hand.give(back_us, ev.ProfilerBack(back_us))) == []
    preparing = opened_1()
    assert only(cmd.BeginPreparation, preparing.give(103 * S, ev.ProfilerBack(103 * S))) == []
