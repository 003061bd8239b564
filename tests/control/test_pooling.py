"""Labels of the same scene: who is asked for them, and what a trial with them changes."""

from dataclasses import replace

import pytest
from byhand import NEEDS, OPTIONS, A, B, S, labels, started

from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.profile import FamilyCurve
from ekya.core.weights import PooledLabels, SceneOf

POOLS = replace(OPTIONS, reacts_to_drift=True, pools_labels=True)
PROFILES = replace(NEEDS, micro_profile=True)
ALONE = FamilyCurve(16, 0, 1, 64, (0.4, 0.5), 1.0, 0.5, validation_crops=40)
TOGETHER = replace(ALONE, accuracies=(0.4, 0.7), subset_crops=128)
POOLED = PooledLabels((A, B), 60, 0.7, 0.5, 40, True)


def drift(t_us, stream, since_us):
    return ev.DriftDetected(t_us, stream, 0, since_us, "told by the test")


def asked(turn):
    return {
        one.stream: one.scenes
        for command in turn.commands
        if isinstance(command, cmd.BeginPreparation)
        for one in command.streams
    }


def opened_1(options, needs=PROFILES, drifts=()):
    """Returns window 1 as it opens, and that step."""
    hand = started(options=options, needs=needs)
    for event in drifts:
        hand.give(event.t_us, event)
    turn = hand.open_window(1)
    return hand, turn


def test_preparation_names_the_scenes_of_streams_that_drifted_together():
    drifts = (drift(20 * S, A, 18 * S), drift(23 * S, B, 21 * S))
    _, turn = opened_1(replace(POOLS, reacts_to_drift=False), drifts=drifts)
    assert asked(turn) == {
        A: (SceneOf(A, 18 * S), SceneOf(B, 21 * S)),
        B: (SceneOf(B, 21 * S), SceneOf(A, 18 * S)),
    }


def test_reaction_names_the_scenes_of_streams_that_drifted_together():
    hand = started(options=POOLS, needs=PROFILES)
    hand.give(20 * S, drift(20 * S, A, 18 * S))
    hand.give(23 * S, drift(23 * S, B, 21 * S))
    turn = hand.end_preparation(25, 0, 1)
    assert asked(turn)[B] == (SceneOf(B, 21 * S), SceneOf(A, 18 * S))


def test_preparation_without_drift_names_the_streams_own_scene():
    _, turn = opened_1(POOLS)
    assert asked(turn) == {A: (SceneOf(A, 0),), B: (SceneOf(B, 0),)}


@pytest.mark.parametrize(
    ("options", "needs"),
    [(replace(POOLS, pools_labels=False), PROFILES), (POOLS, replace(NEEDS, micro_profile=False))],
)
def test_preparation_without_the_option_or_trials_names_none(options, needs):
    _, turn = opened_1(options, needs)
    assert all(scenes == () for scenes in asked(turn).values())


def tried(*profiles):
    """Returns stream ``a`` after labels and these trials of one family."""
    hand, _ = opened_1(POOLS)
    hand.give(105 * S, labels(105 * S, A, crops=100))
    for at_s, event in enumerate(profiles, 106):
        hand.give(at_s * S, replace(event, t_us=at_s * S))
    return hand.stream()


def test_pooled_labels_that_help_are_learned_from_and_replace_the_curve():
    stream = tried(
        ev.ProfileReady(0, A, 1, ALONE, 0.2),
        ev.ProfileReady(0, A, 1, TOGETHER, 0.3, POOLED),
    )
    assert stream.profiles.curves == (TOGETHER,)
    assert stream.labels.learnt_crops == 160
    assert stream.prepared_gpu_s == pytest.approx(0.5 + 0.2 + 0.3)


def test_pooled_labels_that_are_refused_only_cost():
    stream = tried(
        ev.ProfileReady(0, A, 1, ALONE, 0.2),
        ev.ProfileReady(0, A, 1, TOGETHER, 0.3, replace(POOLED, learns=False)),
    )
    assert stream.profiles.curves == (ALONE,)
    assert stream.labels.learnt_crops == 100
    assert stream.prepared_gpu_s == pytest.approx(1.0)


def test_new_labels_begin_without_pooled_ones():
    stream = tried(
        ev.ProfileReady(0, A, 1, ALONE, 0.2),
        ev.ProfileReady(0, A, 1, TOGETHER, 0.3, POOLED),
        replace(labels(0, A, crops=50), since_us=100 * S),
    )
    assert stream.labels.learnt_crops == 50


def test_drift_that_is_told_late_begins_a_scene_and_no_preparation():
    """The window's own labels show the new scene."""
    hand, _ = opened_1(POOLS)
    hand.give(101 * S, ev.DriftDetected(101 * S, A, 0, 30 * S, "told by the test"))
    assert (hand.stream().scene_us, hand.stream().drifted_us) == (30 * S, None)
