"""Few retrainings at a time: the value of a course, its order, and the number that run in parallel."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from views import options_of, with_golden

from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.speed import LINEAR
from ekya.core.units import JobId, StreamId
from ekya.core.view import (
    InferenceOption,
    RetrainOption,
    RunningRetraining,
    StreamView,
    WindowView,
)
from ekya.planning.schedulers.allocation import choices_by_stream, kept_floors
from ekya.planning.schedulers.objective import evaluate_phases
from ekya.planning.schedulers.phases import plan_of_course
from ekya.planning.schedulers.pick import StreamChoices, pick_inference
from ekya.planning.schedulers.registry import make_scheduler
from ekya.planning.schedulers.schedule_simulation import settled_worths, simulate_schedule
from ekya.planning.schedulers.serial import best_course, effort_for
from ekya.planning.schedulers.tables import value_tables
from ekya.planning.schedulers.window_arrays import concave_hulls, window_arrays_of
from ekya.testing import V100, window_views

few = settings(max_examples=60)


@few
@given(view=window_views(), worths=st.lists(st.sampled_from([0.0, 0.001, 0.01, 0.1]), min_size=4, max_size=4))
def test_course_value_equals_objective_of_plan(view, worths):
    if not view.streams or view.window_end_us <= view.now_us:
        return
    arrays = window_arrays_of(view)
    count = len(view.streams)
    states = np.array([[len(known) - 1 for known in arrays.options]])
    course = simulate_schedule(arrays, states, np.array([worths[:count]]))
    found = evaluate_phases(view, plan_of_course(view, arrays, course).phases)
    np.testing.assert_allclose(course.values[0], [value for _, value in found.per_stream], atol=1e-9)
    done = {stream: at - view.now_us for stream, at in found.completions_us if at < view.window_end_us}
    played = {
        stream.stream: at
        for stream, at in zip(arrays.streams, course.done_us[0], strict=True)
        if at < arrays.left_us
    }
    assert played == done


@few
@given(view=window_views())
def test_minimum_is_kept_in_every_phase(view):
    accuracy = {s.stream: s.accuracy for s in view.streams}
    after = {s.stream: s.running.option if s.running else None for s in view.streams}
    offered = {s.stream: {o.config: o for o in s.retrain_options} for s in view.streams}
    trained = set()
    capacity = view.capacity_milli // view.quantum_milli * view.quantum_milli
    for phase in make_scheduler("serial").plan(view).phases:
        for a in phase.assignments:
            if a.retrain is None and a.stream in trained:
                accuracy[a.stream] = max(accuracy[a.stream], after[a.stream].accuracy_after)
            if a.retrain_share_milli > 0:
                trained.add(a.stream)
                after[a.stream] = after[a.stream] or offered[a.stream][a.retrain]
        now = replace(view, streams=tuple(replace(s, accuracy=accuracy[s.stream]) for s in view.streams))
        kept = {job.stream: floor for job, floor in kept_floors(now, capacity).items()}
        for a, known in zip(phase.assignments, now.streams, strict=True):
            if a.stream in kept:
                possible = pick_inference(now, known, kept[a.stream])
                assert (a.below_min, a.too_old) <= (possible.below_min, possible.too_old)


def stream(name, gain, gpu_s, *, accuracy=0.5, weight=1.0):
    return StreamView(
        StreamId(name),
        accuracy,
        (RetrainOption(RetrainConfig(10, 16, 0, 1, 1.0), accuracy + gain, gpu_s),),
        (InferenceOption(InferenceConfig(1, 32), 1.0, 200),),
        weight=weight,
    )


def view_of(*streams, gpus=2, curve=LINEAR, window_s=200, **changes):
    view = WindowView(0, window_s * 1_000_000, gpus * 1000, 100, 100, 0.0, streams, curve)
    return replace(view, **changes)


def running(phase):
    return [a.stream for a in phase.assignments if a.retrain_share_milli > 0]


def test_order_follows_gain_per_gpu_second():
    view = view_of(stream("a", 0.2, 40), stream("b", 0.3, 20), stream("c", 0.1, 40), gpus=1, window_s=400)
    phases = make_scheduler("serial").plan(view).phases
    assert [running(phase)[0] for phase in phases[:3]] == ["b", "a", "c"]


def test_weighted_stream_first_and_hopeless_never():
    streams = (stream("a", 0.2, 20), stream("b", 0.2, 20, weight=3.0), stream("c", 0.01, 600))
    phases = make_scheduler("serial").plan(view_of(*streams, gpus=1)).phases
    assert running(phases[0]) == ["b"]
    assert not any("c" in running(phase) for phase in phases)


def test_steep_curve_runs_retrainings_together():
    streams = tuple(stream(f"cam-{index}", 0.2, 30) for index in range(4))
    linear = make_scheduler("serial").plan(view_of(*streams, curve=LINEAR)).phases[0]
    steep = make_scheduler("serial").plan(view_of(*streams, curve=V100)).phases[0]
    assert len(running(linear)) < len(running(steep)) == 4


def test_waiting_stream_reason_states_time():
    view = view_of(stream("a", 0.3, 40), stream("b", 0.2, 40), gpus=1)
    reasons = [a.reason for a in make_scheduler("serial").plan(view).phases[0].assignments]
    assert "0.50 -> about 0.80" in reasons[0]
    assert "its turn (10 ep, 1 block, batch 16, 100% data) ends after" in reasons[1]


def test_settled_worths_satisfy_the_condition():
    view = view_of(stream("a", 0.3, 40), stream("b", 0.2, 40), stream("c", 0.2, 80), gpus=1)
    arrays = window_arrays_of(view)
    states, worths = np.ones((1, 3), np.intp), np.array([[0.02, 0.01, 0.005]])
    for _ in range(6):
        course = simulate_schedule(arrays, states, worths)
        worths = settled_worths(course)
    end = course.stretches[-1].serving[0]
    for stretch in course.stretches:
        assert stretch.serving[0] + (worths[0] * stretch.speed[0]).sum() == np.float64(end).round(15) or (
            abs(stretch.serving[0] + (worths[0] * stretch.speed[0]).sum() - end) < 1e-9
        )


def test_running_retraining_may_wait_with_its_gamma():
    slow = stream("a", 0.05, 80)
    slow = replace(
        slow, retrain_options=(), running=RunningRetraining(JobId(1), slow.retrain_options[0], 500)
    )
    phases = make_scheduler("serial").plan(view_of(slow, stream("b", 0.4, 20), gpus=1)).phases
    first = phases[0].assignments[0]
    assert (first.retrain, first.retrain_share_milli) == (slow.running.option.config, 0)
    assert "pauses" in first.reason
    assert running(phases[1]) == ["a"]


@pytest.mark.parametrize("scheduler", ["serial", "ekya"])
def test_small_gain_is_taken_if_it_still_serves_after_the_window(scheduler):
    """It costs 15 GPU-seconds of inference at 0.8, and brings 0.055 for the other 185 s."""
    small = stream("a", 0.055, 15, accuracy=0.8)
    view = view_of(small, gpus=1)
    view = replace(
        view,
        streams=(
            replace(
                small,
                inference_options=(
                    InferenceOption(InferenceConfig(1, 32), 1.0, 1000),
                    InferenceOption(InferenceConfig(10, 32), 0.2, 100),
                ),
            ),
        ),
    )
    plan = make_scheduler(scheduler).plan
    assert running(plan(view).phases[0]) == []
    longer = replace(view, after_us=100_000_000)
    assert running(plan(longer).phases[0]) == ["a"]
    again = replace(longer, previous=plan(longer).phases)
    assert running(plan(again).phases[0]) == ["a"], "the plan in progress is worth as much"


@pytest.mark.parametrize("scheduler", ["serial", "ekya"])
def test_retraining_that_is_not_done_in_the_window_is_worth_nothing_after_it(scheduler):
    view = replace(view_of(stream("a", 0.4, 201), gpus=1), after_us=200_000_000)
    assert all(running(phase) == [] for phase in make_scheduler(scheduler).plan(view).phases)


def test_many_streams_with_rare_fillings_stay_exact():
    streams = tuple(
        stream(f"cam-{index:03}", 0.1 + index % 7 / 20, 5.0 + index % 11 * 3) for index in range(60)
    )
    view = view_of(*streams, gpus=20)
    found = best_course(window_arrays_of(view), effort_for(60))
    assert max(int(stretch.ends.sum()) for stretch in found.courses.stretches) > 1
    plan = make_scheduler("serial").plan(view)
    assert abs(plan.expected_accuracy - found.score) < 1e-9


values = st.lists(st.integers(0, 20).map(lambda tenth: tenth / 10), min_size=2, max_size=9)


@given(values=values, data=st.data())
def test_hulls_are_concave_and_touch_values(values, data):
    floor = data.draw(st.integers(0, len(values) - 1))
    found = concave_hulls(np.array([values]), np.array([floor]))
    rises = [rise for rise in found.rise[0] if rise > 0]
    assert rises == sorted(rises, reverse=True)
    share, height = floor, values[floor]
    on_hull = {share: height}
    for size, rise in zip(found.size[0], found.rise[0], strict=True):
        for _ in range(size):
            share, height = share + 1, height + rise
            on_hull[share] = height
        assert abs(height - values[share]) < 1e-9
    assert abs(height - max(values[floor:])) < 1e-9
    assert all(on_hull[at] >= values[at] - 1e-9 for at in on_hull)


@settings(max_examples=40)
@given(window_views())
def test_value_tables_equal_picks_at_every_share(view):
    tables = value_tables(view)
    for row, choice in enumerate(choices_by_stream(view).values()):
        for quanta in range(tables.levels):
            share = quanta * view.quantum_milli
            serving = choice.choose_retraining(share).serving
            exactly = not any(option.early_part for option in options_of(choice.stream))
            assert tables.serving[row, quanta] == (serving if exactly else pytest.approx(serving, abs=1e-12))
            assert tables.part[row, quanta] == choice.choose_inference(share).part
        assert bool(tables.retrains[row]) == choice.has_retraining


@settings(max_examples=60)
@given(window_views() | window_views().map(with_golden))
def test_kept_floors_are_first_shares_that_keep_constraints(view):
    each = {job.stream: share for job, share in kept_floors(view, 10**9).items()}
    assert each == {stream.stream: floor_milli(view, stream) for stream in view.streams}


def floor_milli(view, stream):
    """Returns the first share at which both constraints are kept, or as many as a whole GPU keeps."""
    shares = range(0, 1001, view.quantum_milli)
    picked = [StreamChoices(view, stream).choose_inference(share) for share in shares]
    for keeps in (
        lambda one: not (one.below_min or one.too_old),
        lambda one: stream.max_age_us is not None and not one.too_old,
        lambda one: not one.below_min,
    ):
        for share, one in zip(shares, picked, strict=True):
            if keeps(one):
                return share
    return 0
