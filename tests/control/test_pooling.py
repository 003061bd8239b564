"""Labels of the same scene: who is asked for them, and what learns from them."""

from dataclasses import replace

from byhand import NEEDS, OPTIONS, A, B, S, labels, started

from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.weights import PooledLabels, SceneOf

POOLS = replace(OPTIONS, reacts_to_drift=True, pools_labels=True)
PROFILES = replace(NEEDS, micro_profile=True)
POOLED = PooledLabels((A, B), 60)


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


def test_preparation_without_the_option_names_none():
    _, turn = opened_1(replace(POOLS, pools_labels=False))
    assert all(scenes == () for scenes in asked(turn).values())


def test_preparation_of_a_scheduler_without_estimates_names_them_as_well():
    _, turn = opened_1(POOLS, replace(NEEDS, micro_profile=False))
    assert asked(turn) == {A: (SceneOf(A, 0),), B: (SceneOf(B, 0),)}


def test_a_retraining_learns_from_pooled_labels_until_there_are_new_ones():
    hand, _ = opened_1(POOLS)
    hand.give(105 * S, replace(labels(105 * S, A, crops=100), pooled=POOLED))
    assert hand.stream().labels.learnt_crops == 160
    hand.give(107 * S, replace(labels(107 * S, A, crops=50), since_us=100 * S))
    assert hand.stream().labels.learnt_crops == 50


def test_drift_that_is_told_late_begins_a_scene_and_no_preparation():
    """The window's own labels show the new scene."""
    hand, _ = opened_1(POOLS)
    hand.give(101 * S, ev.DriftDetected(101 * S, A, 0, 30 * S, "told by the test"))
    assert (hand.stream().scene_us, hand.stream().drifted_us) == (30 * S, None)
