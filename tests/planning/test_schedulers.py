"""Laws that every registered scheduler keeps."""

import copy
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optimum.bound import upper_bound
from views import window_views

from ekya.core.errors import UserError
from ekya.planning.schedulers.allocation import kept_floors
from ekya.planning.schedulers.objective import evaluate
from ekya.planning.schedulers.pick import pick_inference
from ekya.planning.schedulers.registry import SCHEDULERS, make_scheduler

every_scheduler = pytest.mark.parametrize("name", sorted(SCHEDULERS))
every_scheduler_that_shares_out = pytest.mark.parametrize(
    "name", sorted(name for name in SCHEDULERS if not make_scheduler(name).needs.fixed_shares)
)
"""All but the static baselines, whose fixed shares keep a_MIN only by chance."""

every_scheduler_here = pytest.mark.parametrize(
    "name", sorted(name for name in SCHEDULERS if not make_scheduler(name).needs.elsewhere)
)
"""All but those that use GPUs elsewhere."""

few = settings(max_examples=25)
some = settings(max_examples=15)

ROUGH = {"intervals": 4, "rounds": 20}


@st.composite
def moments(draw):
    """A view, in some cases with a plan in progress."""
    view = draw(window_views())
    name = draw(st.sampled_from(["thief", "exact", None]))
    return replace(view, previous=make_scheduler(name).plan(view).phases) if name else view


@every_scheduler
@few
@given(view=moments())
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
@given(view=moments())
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
@some
@given(view=moments())
def test_plan_with_options_reversed_stays_the_same(name, view):
    plan = make_scheduler(name).plan(view)
    streams = tuple(
        replace(
            stream,
            retrain_options=tuple(reversed(stream.retrain_options)),
            inference_options=tuple(reversed(stream.inference_options)),
        )
        for stream in view.streams
    )
    assert make_scheduler(name).plan(replace(view, streams=streams)).phases == plan.phases


@every_scheduler
@some
@given(view=moments(), other=moments())
def test_a_view_is_left_alone_and_nothing_is_remembered(name, view, other):
    scheduler, before = make_scheduler(name), copy.deepcopy(view)
    plan = scheduler.plan(view)
    assert view == before
    scheduler.plan(other)
    assert scheduler.plan(view) == plan


@every_scheduler
@few
@given(view=moments())
def test_what_it_expects_is_the_objective(name, view):
    plan = make_scheduler(name).plan(view)
    assert plan.expected_accuracy == evaluate(view, plan.phases).score


@every_scheduler
@few
@given(view=moments())
def test_what_is_begun_is_done_before_the_window_ends(name, view):
    """At most one γ per stream; a running one goes on even if it will not be done, as the cloud's does.

    A γ that will not be done must bring something before, by its checkpoints.
    """
    plan = make_scheduler(name).plan(view)
    done = dict(evaluate(view, plan.phases).completions_us)
    assert all(view.now_us <= t_us <= view.window_end_us for t_us in done.values())
    for place, stream in enumerate(view.streams):
        named = {phase.assignments[place].retrain for phase in plan.phases}
        gammas = named - {None}
        assert len(gammas) <= 1
        assert not stream.running or None not in named or stream.stream in done
        sent = plan.phases[0].assignments[place].elsewhere
        rising = {option.config for option in stream.retrain_options if option.early_part > 0.0}
        assert stream.running or sent or stream.stream in done or gammas <= rising


@every_scheduler_here
@some
@given(view=moments())
def test_it_scores_no_more_than_the_bound(name, view):
    assert make_scheduler(name).plan(view).expected_accuracy <= upper_bound(view, **ROUGH) + 1e-9


@every_scheduler_that_shares_out
@few
@given(view=moments())
def test_the_minimum_is_kept_for_as_many_streams_as_possible(name, view):
    possible = len(kept_floors(view, usable_milli(view)))
    for phase in make_scheduler(name).plan(view).phases[:1]:
        kept = [
            (got.too_old, got.below_min) == broken_at_a_whole_gpu(view, stream)
            for stream, got in zip(view.streams, phase.assignments, strict=True)
        ]
        assert sum(kept) >= possible


@every_scheduler_that_shares_out
@some
@given(view=moments())
def test_it_scores_no_more_than_what_keeps_the_minimum_can(name, view):
    score = make_scheduler(name).plan(view).expected_accuracy
    assert score <= upper_bound(view, keep_minimum=True, **ROUGH) + 1e-9


def broken_at_a_whole_gpu(view, stream):
    """Returns which of the latency limit and a_MIN breaks even then; the latency limit has priority."""
    whole = pick_inference(view, stream, 1000 // view.quantum_milli * view.quantum_milli)
    return whole.too_old, whole.below_min


def usable_milli(view):
    """Returns the share that the jobs can hold together: whole quanta, and at most one GPU per job."""
    jobs = sum(1 + bool(s.running or s.retrain_options) for s in view.streams)
    each = 1000 // view.quantum_milli * view.quantum_milli
    return min(view.capacity_milli // view.quantum_milli * view.quantum_milli, jobs * each)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(UserError, match="scheduler: there is no 'theif'; choose one of") as raised:
        make_scheduler("theif")
    assert all(name in str(raised.value) for name in SCHEDULERS)
