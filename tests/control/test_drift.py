"""A stream that drifts inside a window: labels of the new scene, and a retraining on them."""

import json
from dataclasses import replace

import pytest
from byhand import (
    LAMBDAS,
    LONG,
    OPTIONS,
    SHORT,
    A,
    B,
    S,
    Wish,
    labels,
    only,
    opened_1,
    prepared,
    progress,
    retraining,
    started,
)
from script import CAM_1, MISFORTUNES
from script import OPTIONS as SCRIPTED
from whole_runs import run

from ekya.control.preparation_timing import MOST_REACTIONS
from ekya.control.step import loop_events_due, next_due_us
from ekya.control.views import lendable_milli
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.effects import ENOUGH_SCENE_US, FIRST_AGAIN_US, FIRST_LABELS_US
from ekya.core.units import JobId, StreamId

REACTS = replace(OPTIONS, reacts_to_drift=True)
C = StreamId("c")
WHY = "confidence fell from 0.9 to 0.5"


def drift(t_us, stream=A, window=1, since_us=None):
    return ev.DriftDetected(t_us, stream, window, t_us - 2 * S if since_us is None else since_us, WHY)


def new_labels(t_us, since_us, stream=A, window=1, accuracy=0.3, **changes):
    return replace(labels(t_us, stream, window, accuracy), since_us=since_us, **changes)


def asked_since(turn):
    """Returns the stream and time of each drift that a step's preparation answers."""
    return [(one.stream, one.since_us) for begun in only(cmd.BeginPreparation, turn) for one in begun.streams]


def test_drift_without_the_option_is_labelled_with_the_next_window():
    hand = retraining()
    turn = hand.give(120 * S, drift(120 * S))
    assert (turn.plan, turn.commands) == (None, ())


def test_drift_begins_preparation_of_that_stream_alone():
    hand = prepared(options=REACTS)
    turn = hand.give(120 * S, drift(120 * S))
    (begun,) = only(cmd.BeginPreparation, turn)
    assert (begun.window, begun.round, begun.share_milli) == (1, 1, REACTS.preparation_share_milli)
    assert begun.streams == (cmd.PrepareStream(A, (), (), 118 * S),)
    assert hand.views[-1].capacity_milli == 1500
    assert begun.plan_epoch == turn.plan.epoch


def test_drift_is_prepared_within_the_limit_counted_from_its_begin():
    hand = prepared(options=REACTS)
    hand.give(120 * S, drift(120 * S))
    assert next_due_us(hand.state.fleet, REACTS) == 135 * S
    assert loop_events_due(hand.state.fleet, 135 * S, REACTS) == (ev.PreparationEnded(135 * S, 1, 1),)
    ended = hand.give(135 * S, *loop_events_due(hand.state.fleet, 135 * S, REACTS))
    assert only(cmd.EndPreparation, ended) == [cmd.EndPreparation(1, 1)]


def test_drift_in_first_window_gives_it_labels_and_a_retraining():
    hand = started(options=REACTS)
    hand.wishes[A] = Wish(retrain=SHORT, retrain_milli=400)
    assert asked_since(hand.give(20 * S, drift(20 * S, window=0))) == [(A, 18 * S)]
    hand.give(22 * S, new_labels(22 * S, 18 * S, window=0))
    turn = hand.end_preparation(24, 0, 1)
    (start,) = only(cmd.StartRetraining, turn)
    assert (start.stream, start.window) == (A, 0)


def give_due(hand, at_us):
    """Gives the loop its own events of a moment, which is the next that it has any at."""
    assert next_due_us(hand.state.fleet, hand.options) == at_us
    return hand.give(at_us, *loop_events_due(hand.state.fleet, at_us, hand.options))


def begun():
    """Both cameras have been labelled twice in window 0, as new ones."""
    hand = started(options=REACTS)
    for round, at_us in ((1, FIRST_LABELS_US), (2, FIRST_AGAIN_US)):
        give_due(hand, at_us)
        hand.give(at_us + S, *(new_labels(at_us + S, 0, one, window=0) for one in (A, B)))
        hand.end_preparation((at_us + 2 * S) // S, 0, round)
    return hand


def test_cameras_that_begin_are_labelled_and_retrained_before_their_first_window_ends():
    hand = started(options=REACTS)
    hand.wishes[A] = Wish(retrain=SHORT, retrain_milli=400)
    assert asked_since(give_due(hand, FIRST_LABELS_US)) == [(A, 0), (B, 0)]
    hand.give(5 * S, new_labels(5 * S, 0, window=0), new_labels(5 * S, 0, B, window=0))
    (start,) = only(cmd.StartRetraining, hand.end_preparation(6, 0, 1))
    assert (start.stream, start.window) == (A, 0)
    assert asked_since(give_due(hand, FIRST_AGAIN_US)) == [(A, 0), (B, 0)]


def test_cameras_that_begin_together_need_not_show_the_same_scene():
    assert [begun().stream(one).scene_us for one in (A, B)] == [None, None]


def test_first_labels_are_no_answer_to_a_drift():
    hand = begun()
    hand.give(30 * S, drift(30 * S, window=0))
    assert hand.stream().reactions == 1
    hand.give(31 * S, new_labels(31 * S, 28 * S, window=0))
    hand.end_preparation(32, 0, 3)
    assert asked_since(give_due(hand, 34 * S)) == [(A, 28 * S)]


def test_without_reactions_window_0_passes_without_labels():
    hand = started()
    assert next_due_us(hand.state.fleet, OPTIONS) == 100 * S
    assert loop_events_due(hand.state.fleet, 99 * S, OPTIONS) == ()


def test_camera_that_joins_is_labelled_on_what_it_has_shown():
    hand = begun()
    hand.wishes[C] = Wish()
    hand.give(30 * S, ev.StreamAdded(30 * S, C, LAMBDAS))
    assert asked_since(give_due(hand, 30 * S + FIRST_LABELS_US)) == [(C, 30 * S)]


def test_labels_of_new_scene_stop_the_retraining_unserved():
    hand = retraining(options=REACTS)
    hand.give(119 * S, drift(119 * S))
    assert hand.stream().job is not None, "it goes on until there are other labels"
    better = hand.give(121 * S, progress(121 * S, 1, 0.9))
    assert only(cmd.ServeModel, better) == [], "that is worth serving in the old scene only"
    turn = hand.give(123 * S, new_labels(123 * S, 117 * S))
    assert turn.commands == (cmd.StopRetraining(A, JobId(1)),)
    assert (hand.stream().job, hand.stream().accuracy) == (None, 0.3)


def test_retraining_that_ends_before_the_new_labels_is_not_served():
    hand = retraining(gamma=SHORT, options=REACTS)
    hand.give(119 * S, drift(119 * S))
    epochs = [progress(121 * S, epoch, 0.9) for epoch in range(1, 5)]
    turn = hand.give(121 * S, *epochs, ev.RetrainFinished(121 * S, A, JobId(1), 4.0))
    assert only(cmd.ServeModel, turn) == []
    (kept,) = only(cmd.KeepServing, turn)
    assert "the scene has changed" in kept.reason
    assert hand.stream().accuracy == 0.5


def test_new_labels_allow_a_second_retraining_in_the_window():
    hand = retraining(gamma=SHORT, options=REACTS)
    hand.give(112 * S, ev.RetrainFinished(112 * S, A, JobId(1), 4.0))
    hand.give(119 * S, drift(119 * S))
    hand.give(121 * S, new_labels(121 * S, 117 * S))
    turn = hand.end_preparation(123, 1, 1)
    assert [start.job for start in only(cmd.StartRetraining, turn)] == [JobId(2)]
    assert hand.views[-1].window_end_us == 200 * S


def test_new_labels_without_objects_stop_nothing():
    hand = retraining(options=REACTS)
    hand.give(119 * S, drift(119 * S))
    turn = hand.give(123 * S, new_labels(123 * S, 117 * S, training_crops=0, validation_crops=0))
    assert turn.commands == ()
    assert (hand.stream().job.job, hand.stream().accuracy) == (JobId(1), 0.5)


def test_drifts_during_a_preparation_are_prepared_together_after_it():
    hand = opened_1(options=REACTS)
    assert hand.give(104 * S, drift(104 * S, B)).commands == ()
    assert hand.give(105 * S, drift(105 * S, A), labels(105 * S, A), labels(105 * S, B)).commands == ()
    turn = hand.end_preparation(110)
    assert only(cmd.EndPreparation, turn) == [cmd.EndPreparation(1)]
    assert asked_since(turn) == [(A, 103 * S), (B, 102 * S)]


def test_other_streams_are_retrained_while_a_drift_is_prepared():
    hand = opened_1(options=REACTS)
    hand.wishes = {A: Wish(retrain=LONG, retrain_milli=300), B: Wish(retrain=LONG, retrain_milli=300)}
    hand.give(105 * S, drift(105 * S, A), labels(105 * S, A), labels(105 * S, B))
    turn = hand.end_preparation(110)
    assert asked_since(turn) == [(A, 103 * S)]
    assert [start.stream for start in only(cmd.StartRetraining, turn)] == [B]


def test_late_end_of_an_earlier_preparation_ends_no_later_one():
    hand = prepared(options=REACTS)
    hand.give(120 * S, drift(120 * S))
    turn = hand.give(121 * S, ev.PreparationEnded(120 * S, 1, 0))
    assert only(cmd.EndPreparation, turn) == []
    assert hand.state.fleet.preparing


def test_drift_that_was_not_labelled_in_time_is_prepared_again():
    hand = prepared(options=REACTS)
    hand.give(120 * S, drift(120 * S))
    turn = hand.end_preparation(135, 1, 1)
    assert asked_since(turn) == [(A, 118 * S)]
    assert only(cmd.BeginPreparation, turn)[0].round == 2


def test_drift_is_labelled_once_the_micro_profiler_has_loaded():
    hand = prepared(options=REACTS)
    hand.give(119 * S, ev.ProfilerDown(119 * S))
    assert only(cmd.BeginPreparation, hand.give(120 * S, drift(120 * S))) == []
    assert next_due_us(hand.state.fleet, REACTS) == 200 * S
    assert asked_since(hand.give(127 * S, ev.ProfilerBack(127 * S))) == [(A, 118 * S)]


def test_scene_labelled_at_once_is_labelled_again_when_it_has_shown_more():
    hand = prepared(options=REACTS)
    hand.wishes[A] = Wish(retrain=LONG, retrain_milli=400)
    hand.give(120 * S, drift(120 * S))
    hand.give(121 * S, new_labels(121 * S, 118 * S))
    hand.end_preparation(122, 1, 1)
    assert next_due_us(hand.state.fleet, REACTS) == 118 * S + ENOUGH_SCENE_US
    assert loop_events_due(hand.state.fleet, 118 * S + ENOUGH_SCENE_US - 1, REACTS) == ()
    at_us = 125 * S
    more = loop_events_due(hand.state.fleet, at_us, REACTS)
    assert more == (ev.MoreLabelsDue(at_us, A, 1),)
    assert asked_since(hand.give(at_us, *more)) == [(A, 118 * S)]
    served = hand.give(126 * S, progress(126 * S, 1, 0.9))
    assert only(cmd.ServeModel, served) != [], "it was trained on the same scene"
    turn = hand.give(127 * S, new_labels(127 * S, 118 * S))
    assert only(cmd.StopRetraining, turn) == [cmd.StopRetraining(A, JobId(1))]
    assert hand.stream().more_labels_us is None


def test_scene_that_has_shown_enough_is_labelled_once():
    hand = prepared(options=REACTS)
    hand.give(120 * S, drift(120 * S, since_us=112 * S))
    hand.give(121 * S, new_labels(121 * S, 112 * S))
    hand.end_preparation(122, 1, 1)
    assert next_due_us(hand.state.fleet, REACTS) == 200 * S


def test_stream_reacts_at_most_twice_in_a_window():
    hand = prepared(options=REACTS)
    begun = []
    for number in range(MOST_REACTIONS + 1):
        at_us = (120 + 10 * number) * S
        begun += asked_since(hand.give(at_us, drift(at_us)))
        hand.give(at_us + S, new_labels(at_us + S, at_us - 2 * S))
        hand.give(at_us + 2 * S, ev.PreparationEnded(at_us + 2 * S, 1, number + 1))
    assert len(begun) == MOST_REACTIONS == 2
    hand.open_window(2)
    hand.end_preparation(205, 2)
    assert asked_since(hand.give(220 * S, drift(220 * S, window=2))) == [(A, 218 * S)]


def test_drift_of_a_lost_stream_waits_until_it_serves():
    hand = prepared(options=REACTS)
    hand.give(118 * S, ev.StreamLost(118 * S, A, "no signal"))
    assert only(cmd.BeginPreparation, hand.give(120 * S, drift(120 * S))) == []
    assert asked_since(hand.give(125 * S, ev.StreamBack(125 * S, A))) == [(A, 118 * S)]


@pytest.mark.parametrize(("later_us", "reacts"), [(0, True), (1, False)])
def test_drift_needs_time_for_preparation_and_the_cheapest_retraining(later_us, reacts):
    """On 100 crops that takes 0.5 x 100 x (0.01 + 4 x 0.02) GPU-seconds."""
    hand = prepared(options=REACTS)
    at_us = 200 * S - REACTS.preparation_us - 4_500_000 + later_us
    assert bool(asked_since(hand.give(at_us, drift(at_us)))) is reacts


@pytest.mark.parametrize(("at_us", "window"), [(190 * S, 1), (201 * S, 1), (201 * S, 2)])
def test_drift_too_late_for_its_window_is_answered_in_the_next(at_us, window):
    """The sample of a window that was nearly over shows the old scene; word of it may come late too."""
    hand = prepared(options=REACTS)
    if at_us < 200 * S:
        assert asked_since(hand.give(at_us, drift(at_us, since_us=188 * S))) == []
    hand.open_window(2)
    if at_us > 200 * S:
        assert asked_since(hand.give(at_us, drift(at_us, window=window, since_us=188 * S))) == []
    turn = hand.end_preparation(205, 2)
    assert asked_since(turn) == [(A, 188 * S)]


def test_scene_with_few_labels_at_the_border_is_labelled_again_in_the_next_window():
    hand = prepared(options=REACTS)
    hand.give(170 * S, drift(170 * S))
    hand.give(171 * S, new_labels(171 * S, 168 * S))
    hand.end_preparation(172, 1, 1)
    hand.open_window(2)
    assert asked_since(hand.end_preparation(205, 2)) == [(A, 168 * S)]


def test_drift_that_the_next_sample_shows_is_labelled_with_it():
    hand = prepared(options=REACTS)
    hand.give(118 * S, ev.StreamLost(118 * S, A, "no signal"), drift(118 * S))
    hand.give(199 * S, ev.StreamBack(199 * S, A))
    hand.open_window(2)
    assert asked_since(hand.end_preparation(205, 2)) == []


def test_window_closing_over_a_reaction_ends_it():
    hand = retraining(options=REACTS)
    hand.give(175 * S, progress(175 * S, 1, 0.9), drift(175 * S))
    closed = hand.open_window(2)
    assert cmd.EndPreparation(1, 1) in closed.commands
    assert only(cmd.ServeModel, closed) == []
    (begun,) = only(cmd.BeginPreparation, closed)
    assert (begun.window, begun.round) == (2, 0)


def test_lent_capacity_leaves_room_for_a_reaction():
    kept_milli = REACTS.quantum_milli
    hand = opened_1(options=REACTS)
    hand.end_preparation(130)
    known, reacting = (lendable_milli(hand.state.fleet, one, 150 * S) for one in (OPTIONS, REACTS))
    assert known - reacting == kept_milli
    hand.give(160 * S, ev.CapacityLent(160 * S, reacting))
    (begun,) = only(cmd.BeginPreparation, hand.give(170 * S, drift(170 * S)))
    assert begun.share_milli == kept_milli


@pytest.mark.parametrize("stream", ["no-retrain", "cloud"])
def test_schedulers_without_labels_never_react(stream):
    options = replace(SCRIPTED, reacts_to_drift=True)
    done = run(stream, options=options, misfortunes=(drift(40 * S, CAM_1),))
    (profiled,) = done.commands(cmd.BeginPreparation)
    assert (profiled.window, profiled.round) == (1, 0)
    assert not any(asked.labels for asked in profiled.streams)


def test_journal_without_the_option_has_no_newer_keys(tmp_path):
    path = tmp_path / "journal.jsonl"
    run("thief", misfortunes=MISFORTUNES, path=path)
    header, *_ = lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert "reacts_to_drift" not in header["options"]
    text = json.dumps(lines)
    assert '"round"' not in text
    assert '"since_us"' not in text
