"""Ekya's scheduler is never below the thief, in forecasts and in results of windows."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from optimum.executed import execute
from optimum.problems import problem
from views import paper_view

from ekya.core.speed import LINEAR
from ekya.planning.schedulers.ekya import best_remainder
from ekya.planning.schedulers.objective import worth_of_phases
from ekya.planning.schedulers.pick import SAME
from ekya.planning.schedulers.registry import make_scheduler
from ekya.testing import V100, window_views

few = settings(max_examples=25)


@few
@given(view=window_views())
def test_ekya_is_never_below_thief(view):
    expected = make_scheduler("ekya").plan(view).expected_accuracy
    assert expected >= make_scheduler("thief").plan(view).expected_accuracy - SAME


@few
@given(view=window_views())
def test_executed_window_is_worth_its_forecast(view):
    if view.window_end_us > view.now_us:
        done = execute(view, make_scheduler("ekya"))
        assert done.score >= done.forecast - 1e-6


@pytest.mark.parametrize("curve", ["linear", "measured"])
def test_executed_windows_with_few_gpus_beat_thief(curve):
    view = problem(7000, 6, 2.0, curve)
    ekya, thief = (execute(view, make_scheduler(name)) for name in ("ekya", "thief"))
    assert ekya.score > thief.score + 0.01


def test_executed_paper_example_beats_paper():
    """The paper's plan gets 73% over both windows (§3.2)."""
    first = execute(paper_view(1, {"A": 0.65, "B": 0.5}, finer_lambdas=True), make_scheduler("ekya"))
    second = execute(paper_view(2, {"A": 0.75, "B": 0.9}, finer_lambdas=True), make_scheduler("ekya"))
    assert (first.score + second.score) / 2 > 0.77


@few
@given(view=window_views())
def test_executed_single_phase_matches_objective(view):
    """Without completions there is one phase, and nothing to plan again."""
    idle = replace(view, streams=tuple(replace(s, retrain_options=(), running=None) for s in view.streams))
    if view.window_end_us > view.now_us:
        done = execute(idle, make_scheduler("thief"))
        assert done.plans == 1
        assert done.score == pytest.approx(done.forecast, abs=SAME)


@few
@given(view=window_views())
def test_remainder_is_worth_at_least_what_plan_forecast(view):
    plan = make_scheduler("serial").plan(view)
    remainder = best_remainder(replace(view, previous=plan.phases))
    if view.streams:
        assert remainder.worth >= plan.expected_accuracy - SAME
        assert worth_of_phases(view, remainder.phases) == remainder.worth


def test_remainder_that_no_longer_fits_is_dropped():
    view = problem(7000, 3, 2.0)
    plan = make_scheduler("serial").plan(view)
    assert best_remainder(replace(view, previous=plan.phases)) is not None
    assert best_remainder(replace(view, previous=plan.phases, capacity_milli=500)) is None
    fewer = replace(view, streams=view.streams[:2])
    assert best_remainder(replace(fewer, previous=plan.phases)) is not None
    other = make_scheduler("serial").plan(fewer)
    assert best_remainder(replace(view, previous=other.phases)) is None


def test_remainder_without_better_plan_is_kept():
    for curve in (LINEAR, V100):
        view = replace(problem(7001, 5, 2.0), training_speed=curve)
        plan = make_scheduler("ekya").plan(view)
        again = make_scheduler("ekya").plan(replace(view, previous=plan.phases))
        assert again == plan
