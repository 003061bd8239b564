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


def test_view_option_has_net_early_part():
    (option,) = seen().retrain_options
    assert option.early_part == early_part(PROFILED, 0.5, OPTIONS) > 0.0


def test_view_for_paper_planners_has_no_early_part():
    (option,) = seen(replace(TOLD, early_parts=False)).retrain_options
    assert option == replace(PROFILED, early_part=0.0)


def test_view_of_fitted_curve_has_early_part():
    options = seen(profiles=WindowProfiles((CURVE,))).retrain_options
    assert [option.config for option in options] == [SHORT]
    free = replace(OPTIONS, checkpoint_delay_us=0)
    assert 0.0 <= early_part(options[0], 0.4, free) < 1.0


def test_view_of_running_job_has_remaining_early_part():
    running = seen(job=JOB).running.option
    assert (running.gpu_s, running.accuracy_after) == (16.0, 0.9)
    assert running.early_part == pytest.approx(early_part_left(0.7, 16.0 / 20.0))


def test_view_accuracy_follows_served_checkpoint():
    before, since = (seen(job=replace(JOB, served_epoch=epoch), profiles=MEASURED) for epoch in (0, 2))
    assert (before.accuracy, since.accuracy) == (0.4, 0.5)
    assert seen(finished=JOB, profiles=MEASURED).accuracy == 0.5


def test_view_of_untried_stream_offers_usual_options():
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


def test_view_of_untried_stream_rises_with_accuracy():
    low, high = (
        seen(profiles=WindowProfiles(), accuracy=accuracy).retrain_options for accuracy in (0.2, 0.85)
    )
    assert all(worse.accuracy_after < better.accuracy_after for worse, better in zip(low, high, strict=True))
