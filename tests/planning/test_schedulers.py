"""Laws that every registered scheduler keeps."""

import copy
from dataclasses import replace

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from optimum.bound import upper_bound
from views import window_views

from ekya.core.errors import UserError
from ekya.planning.schedulers.allocation import kept_floors
from ekya.planning.schedulers.objective import evaluate_phases
from ekya.planning.schedulers.pick import pick_inference
from ekya.planning.schedulers.registry import SCHEDULERS, make_scheduler

ALL = sorted(SCHEDULERS)
SHARING = [name for name in ALL if not make_scheduler(name).needs.fixed_shares]
"""All but the static baselines, whose fixed shares keep a_MIN only by chance."""

HERE = [name for name in ALL if not make_scheduler(name).needs.elsewhere]
"""All but those that use GPUs elsewhere."""

few = settings(max_examples=25)
some = settings(max_examples=15)

ROUGH = {"intervals": 4, "rounds": 20}


def each(names):
    """Yields schedulers for one example, which is not drawn again for each; a failure tells which it was."""
    for name in names:
        note(name)
        yield make_scheduler(name)


@st.composite
def moments(draw):
    """A view, in some cases with a plan in progress."""
    view = draw(window_views())
    name = draw(st.sampled_from(["thief", "exact", None]))
    return replace(view, previous=make_scheduler(name).plan(view).phases) if name else view


@few
@given(view=moments())
def test_plan_shares_are_quanta_within_capacity(view):
    for scheduler in each(ALL):
        for phase in scheduler.plan(view).phases:
            shares = [
                share for a in phase.assignments for share in (a.retrain_share_milli, a.inference_share_milli)
            ]
            assert sum(shares) <= view.capacity_milli
            assert all(0 <= share <= 1000 and share % view.quantum_milli == 0 for share in shares)
            assert all(a.retrain_share_milli == 0 for a in phase.assignments if a.retrain is None)


@few
@given(view=moments())
def test_plan_assigns_each_stream_an_offered_option(view):
    for scheduler in each(ALL):
        for index, phase in enumerate(scheduler.plan(view).phases):
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


@some
@given(view=moments())
def test_plan_with_options_reversed_stays_the_same(view):
    for scheduler in each(ALL):
        plan = scheduler.plan(view)
        streams = tuple(
            replace(
                stream,
                retrain_options=tuple(reversed(stream.retrain_options)),
                inference_options=tuple(reversed(stream.inference_options)),
            )
            for stream in view.streams
        )
        assert scheduler.plan(replace(view, streams=streams)).phases == plan.phases


@some
@given(view=moments(), other=moments())
def test_plan_twice_is_equal_and_view_unchanged(view, other):
    before = copy.deepcopy(view)
    for scheduler in each(ALL):
        plan = scheduler.plan(view)
        assert view == before
        scheduler.plan(other)
        assert scheduler.plan(view) == plan


@few
@given(view=moments())
def test_plan_expects_its_objective(view):
    for scheduler in each(ALL):
        plan = scheduler.plan(view)
        assert plan.expected_accuracy == evaluate_phases(view, plan.phases).score


@few
@given(view=moments())
def test_plan_completes_what_it_begins(view):
    """At most one γ per stream; a running one goes on even if it will not be done, as the cloud's does.

    A γ that will not be done must bring something before, by its checkpoints.
    """
    for scheduler in each(ALL):
        plan = scheduler.plan(view)
        done = dict(evaluate_phases(view, plan.phases).completions_us)
        assert all(view.now_us <= t_us <= view.window_end_us for t_us in done.values())
        for place, stream in enumerate(view.streams):
            named = {phase.assignments[place].retrain for phase in plan.phases}
            gammas = named - {None}
            assert len(gammas) <= 1
            assert not stream.running or None not in named or stream.stream in done
            sent = plan.phases[0].assignments[place].elsewhere
            rising = {option.config for option in stream.retrain_options if option.early_part > 0.0}
            assert stream.running or sent or stream.stream in done or gammas <= rising


@some
@given(view=moments())
def test_plan_scores_at_most_upper_bound(view):
    bound = upper_bound(view, **ROUGH)
    for scheduler in each(HERE):
        assert scheduler.plan(view).expected_accuracy <= bound + 1e-9


@few
@given(view=moments())
def test_plan_keeps_minimum_for_most_streams(view):
    possible = len(kept_floors(view, usable_milli(view)))
    for scheduler in each(SHARING):
        for phase in scheduler.plan(view).phases[:1]:
            kept = [
                (got.too_old, got.below_min) == broken_at_a_whole_gpu(view, stream)
                for stream, got in zip(view.streams, phase.assignments, strict=True)
            ]
            assert sum(kept) >= possible


@some
@given(view=moments())
def test_plan_scores_at_most_bound_with_minimum(view):
    bound = upper_bound(view, keep_minimum=True, **ROUGH)
    for scheduler in each(SHARING):
        assert scheduler.plan(view).expected_accuracy <= bound + 1e-9


def broken_at_a_whole_gpu(view, stream):
    """Returns which of the latency limit and a_MIN breaks even then; the latency limit has priority."""
    whole = pick_inference(view, stream, 1000 // view.quantum_milli * view.quantum_milli)
    return whole.too_old, whole.below_min


def usable_milli(view):
    """Returns the share that the jobs can hold together: whole quanta, and at most one GPU per job."""
    jobs = sum(1 + bool(s.running or s.retrain_options) for s in view.streams)
    each = 1000 // view.quantum_milli * view.quantum_milli
    return min(view.capacity_milli // view.quantum_milli * view.quantum_milli, jobs * each)


def test_make_scheduler_unknown_name_lists_known():
    with pytest.raises(UserError, match="scheduler: there is no 'theif'; choose one of") as raised:
        make_scheduler("theif")
    assert all(name in str(raised.value) for name in SCHEDULERS)
