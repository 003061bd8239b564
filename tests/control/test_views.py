"""Scheduler views of a retraining whose checkpoints serve: nothing counts twice."""

from dataclasses import replace

import pytest
from byhand import LAMBDAS, LONG, NEEDS, OPTIONS, SHORT, A, S

from ekya.control.checkpointing import early_part
from ekya.control.views import window_view
from ekya.core.profile import FamilyCurve
from ekya.core.state import FleetState, RetrainJob, StreamState, WindowLabels, WindowProfiles
from ekya.core.units import JobId
from ekya.core.view import RetrainOption
from ekya.planning.schedulers.checkpoint_gain import early_part_left

TOLD = replace(NEEDS, micro_profile=True, early_parts=True)
PROFILED = RetrainOption(LONG, 0.9, 10.0, early_part=0.7)
PROFILES = WindowProfiles(options=(PROFILED,))
CURVE = FamilyCurve(16, 0, 0, 40, (0.4, 0.6, 0.7), 0.1, 0.1, validation_crops=100)
MEASURED = WindowProfiles((CURVE,), (PROFILED,))
JOB = RetrainJob(JobId(1), LONG, 1, 500, 0.9, 0.9, 10.0, (0.6, 0.7), 4.0, 2.0, early_part=0.7)


def seen(needs=TOLD, **changes):
    stream = replace(
        StreamState(A, LAMBDAS, accuracy=0.5, labels=WindowLabels(80, 20), profiles=PROFILES),
        **changes,
    )
    state = FleetState((stream,), window=1, window_open_us=100 * S, window_end_us=200 * S)
    return window_view(state, 120 * S, OPTIONS, needs, {}).streams[0]


def test_an_estimate_is_shown_with_what_its_checkpoints_bring():
    (option,) = seen().retrain_options
    assert option.early_part == early_part(PROFILED, 0.5, OPTIONS) > 0.0


def test_who_plans_as_the_paper_does_is_told_nothing():
    (option,) = seen(replace(TOLD, early_parts=False)).retrain_options
    assert option == replace(PROFILED, early_part=0.0)


def test_a_fitted_curve_says_what_its_family_reaches_on_the_way():
    options = seen(profiles=WindowProfiles((CURVE,))).retrain_options
    assert [option.config for option in options] == [SHORT]
    free = replace(OPTIONS, checkpoint_delay_us=0)
    assert 0.0 <= early_part(options[0], 0.4, free) < 1.0


def test_of_a_retraining_in_progress_only_what_is_left_is_early():
    running = seen(job=JOB).running.option
    assert (running.gpu_s, running.accuracy_after) == (16.0, 0.9)
    assert running.early_part == pytest.approx(early_part_left(0.7, 16.0 / 20.0))


def test_what_a_checkpoint_has_brought_is_the_accuracy_by_now():
    before, since = (seen(job=replace(JOB, served_epoch=epoch), profiles=MEASURED) for epoch in (0, 2))
    assert (before.accuracy, since.accuracy) == (0.4, 0.5)
    assert seen(finished=JOB, profiles=MEASURED).accuracy == 0.5


def test_who_was_not_tried_in_time_is_offered_what_is_usual():
    """With labels and no curve, each γ costs what the cost card says and promises the usual accuracy."""
    options = seen(profiles=WindowProfiles()).retrain_options
    by_card = seen(replace(TOLD, micro_profile=False), profiles=WindowProfiles()).retrain_options
    assert [option.config for option in options] == [option.config for option in by_card]
    costs = [option.gpu_s for option in by_card]
    assert [option.gpu_s for option in options] == pytest.approx(costs)
    assert all(0.5 < option.accuracy_after < 0.9 for option in options)
    assert seen(profiles=WindowProfiles(), accuracy=0.97).retrain_options == ()
    assert seen(profiles=WindowProfiles(), accuracy=None).retrain_options == ()
    assert seen(profiles=WindowProfiles(), labels=WindowLabels(80, 0)).retrain_options == ()


def test_the_better_what_serves_the_more_is_usual():
    low, high = (
        seen(profiles=WindowProfiles(), accuracy=accuracy).retrain_options for accuracy in (0.2, 0.85)
    )
    assert all(worse.accuracy_after < better.accuracy_after for worse, better in zip(low, high, strict=True))
