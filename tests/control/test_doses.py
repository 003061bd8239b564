"""A window's labels in doses: who gets one, when, and what it says of the scene."""

from dataclasses import replace

import pytest
from byhand import (
    LAMBDAS,
    OPTIONS,
    A,
    B,
    Hand,
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

from ekya.control.step import loop_events_due, next_due_us
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.commands import StepRecord
from ekya.core.units import JobId
from ekya.core.weights import Dose, DoseProbe
from ekya.results.metrics.run_history import summarize_steps

DOSES = replace(OPTIONS, doses=4)
WORSE, AS_KNOWN = 0.1, 0.45


def asked(turn):
    """Returns stream, time and dose of what a step's preparation labels."""
    return [
        (one.stream, one.since_us, one.dose)
        for begun in only(cmd.BeginPreparation, turn)
        for one in begun.streams
    ]


def dose_labels(t_us, since_us, accuracy, stream=A, objects=40, known=0.5):
    """Labels of a later dose in window 1, on which the serving model has this accuracy."""
    probe = DoseProbe(accuracy, objects, known)
    return replace(labels(t_us, stream, accuracy=accuracy, crops=30), since_us=since_us, probe=probe)


def give_dose(hand: Hand, t_us, dose=1):
    return hand.give(t_us, ev.DoseDue(t_us, 1, dose))


def test_doses_are_due_at_equal_times_of_the_window():
    hand = prepared(options=DOSES)
    times = []
    for dose in (1, 2, 3):
        at_us = next_due_us(hand.state.fleet, DOSES)
        assert loop_events_due(hand.state.fleet, at_us - 1, DOSES) == ()
        (event,) = loop_events_due(hand.state.fleet, at_us, DOSES)
        assert event == ev.DoseDue(at_us, 1, dose)
        hand.give(at_us, event)
        hand.give(at_us + S, ev.PreparationEnded(at_us + S, 1, dose))
        times.append(at_us)
    assert times == [125 * S, 150 * S, 175 * S]
    assert next_due_us(hand.state.fleet, DOSES) == 200 * S


def test_doses_that_a_preparation_delays_are_due_once_after_it():
    hand = opened_1(options=replace(DOSES, preparation_us=60 * S))
    assert loop_events_due(hand.state.fleet, 155 * S, hand.options) == ()
    hand.end_preparation(156)
    assert loop_events_due(hand.state.fleet, 156 * S, hand.options) == (ev.DoseDue(156 * S, 1, 2),)


def test_windows_own_preparation_is_the_first_dose():
    hand = started(options=DOSES)
    turn = hand.open_window(1)
    assert asked(turn) == [(A, None, Dose(4)), (B, None, Dose(4))]


def test_later_dose_is_of_frames_since_the_labels_before_it():
    hand = prepared(options=DOSES)
    turn = give_dose(hand, 125 * S)
    (begun,) = only(cmd.BeginPreparation, turn)
    assert (begun.window, begun.round) == (1, 1)
    assert asked(turn) == [(A, 100 * S, Dose(4, 0.5)), (B, 100 * S, Dose(4, 0.5))]
    hand.give(127 * S, dose_labels(127 * S, 100 * S, AS_KNOWN))
    hand.end_preparation(128, 1, 1)
    later = {one: since_us for one, since_us, _ in asked(give_dose(hand, 150 * S, 2))}
    assert later == {A: 125 * S, B: 100 * S}, "B had no labels of the dose before"


def test_first_window_has_later_doses():
    hand = started(options=DOSES)
    turn = hand.give(25 * S, ev.DoseDue(25 * S, 0, 1))
    assert asked(turn) == [(A, 0, Dose(4)), (B, 0, Dose(4))]


def test_run_without_doses_has_none():
    hand = prepared()
    assert next_due_us(hand.state.fleet, OPTIONS) == 200 * S
    assert loop_events_due(hand.state.fleet, 199 * S, OPTIONS) == ()


def test_dose_of_the_same_scene_lets_a_retraining_go_on():
    hand = retraining(options=DOSES)
    give_dose(hand, 125 * S)
    turn = hand.give(127 * S, dose_labels(127 * S, 100 * S, AS_KNOWN))
    assert turn.commands == ()
    assert (hand.stream().job.job, hand.stream().accuracy) == (JobId(1), 0.5)
    served = hand.give(128 * S, progress(128 * S, 1, 0.9))
    assert only(cmd.ServeModel, served) != []


def test_dose_that_shows_a_new_scene_stops_a_retraining():
    hand = retraining(options=DOSES)
    give_dose(hand, 125 * S)
    turn = hand.give(127 * S, dose_labels(127 * S, 100 * S, WORSE))
    assert turn.commands == (cmd.StopRetraining(A, JobId(1)),)
    assert (hand.stream().accuracy, hand.stream().scene_us) == (WORSE, 100 * S)
    turn = hand.end_preparation(128, 1, 1)
    assert [start.stream for start in only(cmd.StartRetraining, turn)] == [A]


def test_dose_allows_another_retraining_in_the_window():
    hand = retraining(options=DOSES)
    hand.give(112 * S, progress(112 * S, 1, 0.6), ev.RetrainFinished(112 * S, A, JobId(1), 4.0))
    give_dose(hand, 125 * S)
    hand.give(127 * S, dose_labels(127 * S, 100 * S, AS_KNOWN))
    turn = hand.end_preparation(128, 1, 1)
    assert [start.job for start in only(cmd.StartRetraining, turn)] == [JobId(2)]
    assert hand.stream().scene_us is None


@pytest.mark.parametrize(
    ("accuracy", "objects", "known", "shows"),
    [
        (0.6, 16, 0.86, True),
        (0.62, 16, 0.86, False),
        (0.0, 1, 0.99, False),
        (0.0, 0, 0.99, False),
        (0.0, 40, None, False),
    ],
)
def test_probe_shows_drift_only_beyond_chance(accuracy, objects, known, shows):
    assert DoseProbe(accuracy, objects, known).shows_drift is shows


def test_drifted_stream_comes_first_and_has_all_its_labels():
    hand = prepared(options=replace(DOSES, reacts_to_drift=True))
    seen = ev.DriftDetected(125 * S, B, 1, 123 * S, "the picture differs")
    turn = hand.give(125 * S, seen, ev.DoseDue(125 * S, 1, 1))
    assert asked(turn) == [(B, 123 * S, Dose()), (A, 100 * S, Dose(4, 0.5))]
    assert hand.stream(A).reactions == 0
    assert hand.stream(B).reactions == 1


def test_dose_needs_time_for_a_retraining():
    hand = prepared(options=DOSES)
    assert asked(hand.give(185 * S, ev.DoseDue(185 * S, 1, 3))) == []


@pytest.mark.parametrize(("capacity_milli", "share_milli"), [(1000, 500), (700, 300), (600, 200)])
def test_dose_leaves_inference_its_floor(capacity_milli, share_milli):
    """Each stream reaches a_MIN with two quanta."""
    sparing = replace(DOSES, min_accuracy=0.6, capacity_milli=capacity_milli)
    hand = Hand(wishes={A: Wish(0), B: Wish(0)}, options=sparing)
    hand.give(0, ev.StreamAdded(0, A, LAMBDAS), ev.StreamAdded(0, B, LAMBDAS), ev.WindowOpened(0, 0, 100 * S))
    (begun,) = only(cmd.BeginPreparation, hand.give(25 * S, ev.DoseDue(25 * S, 0, 1)))
    assert begun.share_milli == share_milli
    assert hand.views[-1].capacity_milli == capacity_milli - share_milli


@pytest.mark.parametrize(("accuracy", "drifts"), [(WORSE, 1), (AS_KNOWN, 0)])
def test_summary_shows_the_drift_of_a_dose_with_its_evidence(accuracy, drifts):
    event = dose_labels(127 * S, 100 * S, accuracy)
    found = summarize_steps([StepRecord(127 * S, (event,), None, ())]).drifts
    assert len(found) == drifts
    for drift in found:
        assert (drift.stream, drift.since_us) == (A, 100 * S)
        assert drift.reason == "of 40 objects labelled since, the model gets 10.0% right, and 50.0% was known"
