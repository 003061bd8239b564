"""Requests of an operator: the commands that follow, and what they change in the next plan."""

from dataclasses import replace

import pytest
from byhand import (
    INFERENCE,
    LAMBDAS,
    LONG,
    OPTIONS,
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

from ekya.control.step import loop_events_due
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core import requests as rq
from ekya.core.areas import Areas
from ekya.core.stream_faults import Status
from ekya.core.units import JobId, ModelVersion
from ekya.core.weights import Compared


def planned(hand):
    """Returns the streams of the newest plan."""
    return [stream.stream for stream in hand.views[-1].streams]


def test_paused_stream_gives_its_share_to_the_others():
    hand = started(wishes={A: Wish(1000), B: Wish(1000)})
    hand.give(10 * S, rq.StreamPaused(10 * S, A, True))
    assert planned(hand) == [B]
    assert (hand.stream().status, hand.stream().inference_share_milli) == (Status.PAUSED, 0)
    back = hand.give(20 * S, rq.StreamPaused(20 * S, A, False))
    assert only(cmd.SetInference, back) == [cmd.SetInference(A, LAMBDAS[0].config, 1000, hand.state.epoch)]


def test_paused_stream_ends_its_retraining_whose_share_the_others_get_at_once():
    hand = retraining(LONG, options=replace(OPTIONS, capacity_milli=1000))
    hand.wishes[B] = Wish(1000)
    hand.give(120 * S, progress(120 * S, 1, 0.4))
    turn = hand.give(121 * S, rq.StreamPaused(121 * S, A, True))
    epoch = hand.state.epoch
    assert turn.commands == (
        cmd.StopRetraining(A, JobId(1)),
        cmd.SetInference(B, LAMBDAS[0].config, 1000, epoch),
    )
    late = hand.give(122 * S, progress(122 * S, 2, 0.9), ev.RetrainFinished(123 * S, A, JobId(1), 2.0))
    assert only(cmd.ServeModel, late) == []


def test_stream_that_goes_on_in_its_window_may_be_retrained_once_more():
    hand = retraining(LONG)
    hand.give(120 * S, rq.StreamPaused(120 * S, A, True))
    back = hand.give(130 * S, rq.StreamPaused(130 * S, A, False))
    assert [(one.stream, one.job, one.config) for one in only(cmd.StartRetraining, back)] == [
        (A, JobId(2), LONG)
    ]


def test_stream_that_is_paused_twice_stops_its_retraining_once():
    hand = retraining(LONG)
    again = (rq.StreamPaused(at * S, A, True) for at in (120, 121))
    assert only(cmd.StopRetraining, hand.give(121 * S, *again)) == [cmd.StopRetraining(A, JobId(1))]


def test_paused_stream_is_not_labelled():
    hand = started()
    hand.give(10 * S, rq.StreamPaused(10 * S, A, True))
    (begun,) = only(cmd.BeginPreparation, hand.open_window(1))
    assert [asked.stream for asked in begun.streams] == [B]


def test_camera_that_is_lost_while_paused_stays_paused():
    hand = started()
    hand.give(10 * S, rq.StreamPaused(10 * S, A, True), ev.StreamLost(11 * S, A, "no signal"))
    hand.give(12 * S, ev.StreamBack(12 * S, A))
    assert hand.stream().status is Status.PAUSED


def test_removed_stream_ends_its_retraining_and_is_forgotten_with_the_window():
    hand = retraining()
    turn = hand.give(120 * S, rq.StreamRemoved(120 * S, A))
    assert only(cmd.StopRetraining, turn) == [cmd.StopRetraining(A, JobId(1))]
    assert planned(hand) == [B]
    assert hand.stream().status is Status.ENDED
    hand.open_window(2)
    assert [stream.stream for stream in hand.state.fleet.streams] == [B]


def test_histories_of_a_removed_stream_are_forgotten_with_it():
    hand = retraining()
    hand.give(119 * S, ev.RetrainFinished(119 * S, A, JobId(1), 2.0))
    hand.give(120 * S, rq.StreamRemoved(120 * S, A))
    assert hand.state.histories.keys() == {A}
    hand.open_window(2)
    hand.give(210 * S, labels(210 * S, A, window=2))
    assert not hand.state.histories


@pytest.mark.parametrize(
    "late",
    [
        labels(210 * S, A, window=2),
        progress(210 * S, 1, 0.9),
        ev.WorkerDied(210 * S, A, INFERENCE, "killed"),
        ev.StreamBack(210 * S, A),
        ev.FramesCounted(210 * S, A, 2, 3, 3),
    ],
    ids=lambda event: type(event).__name__,
)
def test_late_event_of_a_forgotten_stream_changes_nothing(late):
    hand = retraining()
    hand.give(120 * S, rq.StreamRemoved(120 * S, A))
    hand.open_window(2)
    before = hand.state
    turn = hand.give(210 * S, late)
    assert (turn.plan, turn.commands, hand.state) == (None, (), before)


def test_removed_stream_may_be_added_again():
    hand = retraining()
    hand.give(120 * S, rq.StreamRemoved(120 * S, A))
    hand.give(130 * S, ev.StreamAdded(130 * S, A, LAMBDAS))
    hand.open_window(2)
    assert (hand.stream().status, hand.stream().job) == (Status.SERVING, None)


def test_fleet_whose_streams_may_still_be_added_goes_on_without_any():
    hand = started(options=replace(OPTIONS, windows=None, last_join_us=1 << 62))
    hand.give(10 * S, rq.StreamRemoved(10 * S, A), rq.StreamRemoved(10 * S, B))
    events = loop_events_due(hand.state.fleet, 100 * S, hand.options)
    assert [type(event) for event in events] == [ev.WindowClosed, ev.WindowOpened]
    hand.give(100 * S, *events)
    assert hand.state.fleet.streams == ()
    hand.give(150 * S, ev.StreamAdded(150 * S, B, LAMBDAS))
    assert planned(hand) == [B]


def test_frozen_stream_stops_its_retraining_and_takes_no_new_weights():
    hand = retraining()
    hand.give(120 * S, progress(120 * S, 1, 0.9))
    turn = hand.give(121 * S, rq.ModelFrozen(121 * S, A, True))
    assert only(cmd.StopRetraining, turn) == [cmd.StopRetraining(A, JobId(1))]
    assert hand.views[-1].streams[0].retrain_options == ()
    (begun,) = only(cmd.BeginPreparation, hand.open_window(2))
    assert [asked.stream for asked in begun.streams] == [B]
    hand.give(210 * S, rq.ModelFrozen(210 * S, A, False))
    (begun,) = only(cmd.BeginPreparation, hand.open_window(3))
    assert [asked.stream for asked in begun.streams] == [A, B]


def test_operator_rolls_back_to_a_version():
    hand = started()
    turn = hand.give(10 * S, rq.RollBackRequested(10 * S, A, ModelVersion(3)))
    (back,) = turn.commands
    assert (back.stream, back.version) == (A, 3)


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("freezes_first", [False, True], ids=["back, freeze", "freeze, back"])
def test_model_that_is_rolled_back_and_frozen_stays(at_once, freezes_first):
    """Not even a checkpoint of the retraining that ran takes its place, nor what labels show."""
    hand = retraining()
    hand.give(120 * S, progress(120 * S, 1, 0.9))
    requests = [rq.RollBackRequested(121 * S, A, ModelVersion(3)), rq.ModelFrozen(121 * S, A, True)]
    if freezes_first:
        requests.reverse()
    batches = [requests] if at_once else [[one] for one in requests]
    commands = [command for batch in batches for command in hand.give(121 * S, *batch).commands]
    assert [(one.stream, one.version) for one in commands if isinstance(one, cmd.RollBack)] == [(A, 3)]
    assert [one for one in commands if isinstance(one, cmd.StopRetraining)] == [
        cmd.StopRetraining(A, JobId(1))
    ]
    serving = ev.RolledBack(122 * S, A, ModelVersion(4), ModelVersion(3), 200)
    late = [progress(123 * S, 2, 0.95), ev.RetrainFinished(124 * S, A, JobId(1), 2.0)]
    worse = replace(labels(125 * S, A), compared=Compared(0.1, 0.9, 16))
    for after in (hand.give(125 * S, serving, *late, worse), hand.open_window(2)):
        changing = (cmd.ServeModel, cmd.RollBack, cmd.StartRetraining)
        assert [one for one in after.commands if isinstance(one, changing) and one.stream == A] == []
    assert (hand.stream().version, hand.stream().frozen) == (4, True)


def test_smaller_capacity_ends_the_retraining_of_a_lost_stream_and_a_larger_one_does_not():
    """No plan changes its share."""
    hand = retraining(LONG)
    hand.give(120 * S, ev.StreamLost(120 * S, A, "no signal"))
    larger = hand.give(121 * S, rq.CapacityChanged(121 * S, 2500, 500))
    assert only(cmd.StopRetraining, larger) == []
    assert hand.views[-1].capacity_milli == 2500 - hand.stream().job.share_milli
    smaller = hand.give(122 * S, rq.CapacityChanged(122 * S, 1000, 200))
    assert smaller.commands[0] == cmd.StopRetraining(A, JobId(1))
    assert hand.views[-1].capacity_milli == 1000
    (begun,) = only(cmd.BeginPreparation, hand.open_window(2))
    assert begun.share_milli == 200


def test_requested_restart_has_the_service_start_again():
    hand = started()
    turn = hand.give(10 * S, rq.RestartRequested(10 * S, "the class tram was added"))
    assert turn.commands == (cmd.StartAgain("the class tram was added"),)
    assert turn.plan is None


def test_requested_labels_are_made_at_once_without_a_drift():
    """Even where the fleet does not react to drift, and whatever they cost."""
    hand = opened_1(options=OPTIONS)
    hand.end_preparation(101)
    turn = hand.give(120 * S, rq.LabelsRequested(120 * S, A, 110 * S))
    (begun,) = only(cmd.BeginPreparation, turn)
    assert [(asked.stream, asked.since_us) for asked in begun.streams] == [(A, 110 * S)]
    assert begun.round == 1
    made = replace(labels(125 * S, A), since_us=110 * S)
    hand.give(125 * S, made)
    hand.give(126 * S, ev.PreparationEnded(126 * S, 1, round=1))
    assert not hand.stream().requested
    assert not only(cmd.BeginPreparation, hand.give(127 * S, ev.StreamBack(127 * S, B)))


@pytest.mark.parametrize("reacts", [True, False])
def test_requested_labels_of_few_frames_are_made_again(reacts):
    """As after a restart, when the frames before are lost."""
    hand = opened_1(options=replace(OPTIONS, reacts_to_drift=reacts))
    hand.end_preparation(101)
    hand.give(120 * S, rq.LabelsRequested(120 * S, A, 120 * S))
    hand.give(121 * S, replace(labels(121 * S, A, crops=0), since_us=120 * S))
    assert not only(cmd.BeginPreparation, hand.give(122 * S, ev.PreparationEnded(122 * S, 1, round=1)))
    again = hand.give(126 * S, *loop_events_due(hand.state.fleet, 126 * S, hand.options))
    (begun,) = only(cmd.BeginPreparation, again)
    assert [(asked.stream, asked.since_us) for asked in begun.streams] == [(A, 120 * S)]
    hand.give(127 * S, replace(labels(127 * S, A), since_us=120 * S))
    assert (hand.stream().requested, hand.stream().more_labels_us) == (False, None)


def test_labels_that_are_asked_for_once_more_are_made_once_more():
    hand = opened_1(options=replace(OPTIONS, reacts_to_drift=False))
    hand.end_preparation(101)
    hand.give(120 * S, rq.LabelsRequested(120 * S, A, 110 * S))
    hand.give(125 * S, rq.LabelsRequested(125 * S, A, 115 * S))
    hand.give(126 * S, replace(labels(126 * S, A), since_us=110 * S))
    assert hand.stream().requested
    (begun,) = only(cmd.BeginPreparation, hand.give(127 * S, ev.PreparationEnded(127 * S, 1, round=1)))
    assert [(asked.stream, asked.since_us) for asked in begun.streams] == [(A, 115 * S)]


def test_labels_of_the_window_before_do_not_answer_a_request():
    hand = opened_1(options=OPTIONS)
    hand.give(110 * S, rq.LabelsRequested(110 * S, A, 100 * S), labels(111 * S, A))
    (begun,) = only(cmd.BeginPreparation, hand.end_preparation(112))
    assert [(asked.stream, asked.since_us) for asked in begun.streams] == [(A, 100 * S)]


def test_labels_of_a_window_answer_a_request_of_its_beginning():
    hand = opened_1(options=OPTIONS)
    hand.give(110 * S, rq.LabelsRequested(110 * S, A, 100 * S))
    hand.open_window(2)
    hand.give(205 * S, labels(205 * S, A, window=2))
    assert not hand.stream().requested


def test_changed_terms_are_those_of_the_next_plan():
    hand = started()
    hand.give(10 * S, rq.TermsChanged(10 * S, A, 3.0, 2 * S))
    first, second = hand.views[-1].streams
    assert (first.weight, first.max_age_us) == (3.0, 2 * S)
    assert (second.weight, second.max_age_us) == (1.0, None)


def test_changed_areas_are_in_the_state_and_sent_without_a_plan():
    hand, areas = started(), Areas(mask=(((0.0, 0.0), (1.0, 0.0), (1.0, 0.5)),))
    turn = hand.give(10 * S, rq.AreasChanged(10 * S, A, areas))
    assert (turn.commands, turn.plan) == ((cmd.SetAreas(A, areas),), None)
    assert hand.stream().areas == areas


def test_changed_min_accuracy_is_that_of_the_next_plan():
    hand = retraining(LONG)
    hand.give(120 * S, rq.MinAccuracyChanged(120 * S, 0.7))
    assert hand.views[-1].min_accuracy == 0.7
    hand.open_window(2)
    assert hand.views[-1].min_accuracy == 0.7
