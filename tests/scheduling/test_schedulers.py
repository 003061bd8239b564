"""What every registered scheduler must keep to."""

import copy
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from views import GAMMAS, window_views

from ekya.core.configs import InferenceConfig
from ekya.core.ids import StreamId
from ekya.core.speed import LINEAR
from ekya.core.view import InferenceOption, RetrainOption, StreamView, WindowView
from ekya.errors import UserError
from ekya.scheduling.allocation import kept_floors
from ekya.scheduling.objective import evaluate
from ekya.scheduling.pick import pick_inference
from ekya.scheduling.registry import SCHEDULERS, make_scheduler

every_scheduler = pytest.mark.parametrize("name", sorted(SCHEDULERS))
few = settings(max_examples=40)


@every_scheduler
@few
@given(view=window_views())
def test_shares_are_quanta_within_the_capacity(name, view):
    for phase in make_scheduler(name).plan(view).phases:
        shares = [
            share for a in phase.assignments for share in (a.retrain_share_milli, a.inference_share_milli)
        ]
        assert sum(shares) <= view.capacity_milli
        assert all(0 <= share <= 1000 and share % view.quantum_milli == 0 for share in shares)
        assert all(a.retrain_share_milli == 0 for a in phase.assignments if a.retrain is None)


@every_scheduler
@few
@given(view=window_views())
def test_every_stream_has_one_assignment_from_its_own_options(name, view):
    for index, phase in enumerate(make_scheduler(name).plan(view).phases):
        assert [a.stream for a in phase.assignments] == [s.stream for s in view.streams]
        for assigned, stream in zip(phase.assignments, view.streams, strict=True):
            assert assigned.inference in [o.config for o in stream.inference_options]
            assert assigned.reason
            assert "\n" not in assigned.reason
            if stream.running:
                completed = index > 0 and assigned.retrain is None
                assert completed or assigned.retrain == stream.running.option.config
            elif assigned.retrain is not None:
                assert assigned.retrain in [o.config for o in stream.retrain_options]


@every_scheduler
@few
@given(view=window_views(), order=st.randoms(use_true_random=False))
def test_the_same_plan_for_the_same_view_in_any_order(name, view, order):
    before = copy.deepcopy(view)
    plan = make_scheduler(name).plan(view)
    assert view == before
    shuffled = list(view.streams)
    order.shuffle(shuffled)
    again = make_scheduler(name).plan(
        replace(
            view,
            streams=tuple(
                replace(
                    s,
                    retrain_options=tuple(reversed(s.retrain_options)),
                    inference_options=tuple(reversed(s.inference_options)),
                )
                for s in shuffled
            ),
        )
    )
    assert again.phases == plan.phases


@every_scheduler
@few
@given(view=window_views())
def test_what_it_expects_is_the_objective(name, view):
    plan = make_scheduler(name).plan(view)
    assert plan.expected_accuracy == evaluate(view, plan.phases).score


@few
@given(view=window_views())
def test_the_thief_keeps_the_minimum_where_it_can_be_kept(view):
    kept = {job.stream for job in kept_floors(view, usable_milli(view))}
    assigned = make_scheduler("thief").plan(view).phases[0].assignments
    for stream, got in zip(view.streams, assigned, strict=True):
        if stream.stream in kept:
            assert (got.too_old, got.below_min) == broken_at_a_whole_gpu(view, stream)


def broken_at_a_whole_gpu(view, stream):
    """Which of the latency limit and a_MIN breaks even then; of the two the limit goes first."""
    whole = pick_inference(view, stream, 1000 // view.quantum_milli * view.quantum_milli)
    return whole.too_old, whole.below_min


def usable_milli(view):
    """What the jobs can hold together: whole quanta, and at most one GPU a job."""
    jobs = sum(1 + bool(s.running or s.retrain_options) for s in view.streams)
    each = 1000 // view.quantum_milli * view.quantum_milli
    return min(view.capacity_milli // view.quantum_milli * view.quantum_milli, jobs * each)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(UserError, match="scheduler: there is no 'theif'; choose one of") as raised:
        make_scheduler("theif")
    assert all(name in str(raised.value) for name in SCHEDULERS)


def test_ten_streams_on_eight_gpus_are_planned_quickly():
    gammas = tuple(
        RetrainOption(
            replace(GAMMAS[0], epochs=1 + index), 0.6 + 0.3 * index / (index + 4), 8.0 * (1 + index)
        )
        for index in range(18)
    )
    lambdas = tuple(
        InferenceOption(InferenceConfig(every, 32), 1 - 0.04 * (every - 1), 600 // every)
        for every in (1, 2, 3, 5, 10)
    )
    streams = tuple(
        StreamView(StreamId(f"cam-{index}"), 0.5 + index / 50, gammas, lambdas) for index in range(10)
    )
    view = WindowView(0, 200_000_000, 8000, 100, 100, 0.4, streams, LINEAR)
    began = time.process_time()
    plan = make_scheduler("thief").plan(view)
    assert time.process_time() - began < 0.2
    assert plan.expected_accuracy > make_scheduler("uniform").plan(view).expected_accuracy
