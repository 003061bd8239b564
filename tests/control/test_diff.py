"""The fewest commands, in an order in which shares always fit."""

from dataclasses import replace

import pytest
from byhand import EVERY, FAULTS, LAMBDAS, LONG, OPTIONS, SECOND, SHORT, A, B, S
from hypothesis import given, settings
from hypothesis import strategies as st

from ekya.control.plan_commands import after_command, diff_plan
from ekya.control.views import window_view
from ekya.core import commands as cmd
from ekya.core.plan import Assignment
from ekya.core.state import FleetState, RetrainJob, StreamState, WindowLabels
from ekya.core.stream_faults import Status
from ekya.core.units import JobId, StreamId
from ekya.planning.schedulers.scheduler import Needs

NEEDS = Needs(labels=True, inference_profile=True, micro_profile=False, fixed_gamma=True, fixed_shares=True)
CAPACITY = 2000


def job(number=1, share_milli=400, config=LONG):
    return RetrainJob(JobId(number), config, 1, share_milli, 0.8, 0.8, 20.0)


def stream(name, **changes):
    known = {"accuracy": 0.5, "labels": WindowLabels(50, 10)}
    return StreamState(name, LAMBDAS, **{**known, **changes})


def fleet(*streams, next_job=7):
    return FleetState(streams, window=1, window_end_us=200 * S, next_job=JobId(next_job))


def asked(state, *assignments):
    view = window_view(state, 110 * S, OPTIONS, NEEDS, {})
    return diff_plan(view, assignments, state)


def given_to(name, inference_milli, retrain_milli=0, gamma=None, config=EVERY):
    return Assignment(StreamId(name), gamma, retrain_milli, config, inference_milli, False, "so")


def test_diff_of_matching_state_is_empty():
    state = fleet(stream(A, inference=EVERY, inference_share_milli=300, job=job(share_milli=400)))
    assert asked(state, given_to(A, 300, 400, LONG)) == ()


def test_diff_commands_only_changes():
    state = fleet(
        stream(A, inference=EVERY, inference_share_milli=300, job=job(share_milli=400)),
        stream(B, inference=EVERY, inference_share_milli=300),
    )
    assert asked(state, given_to(A, 300, 500, LONG), given_to(B, 300)) == (
        cmd.ResizeRetraining(A, JobId(1), 500),
    )
    assert asked(state, given_to(A, 300, 400, LONG), given_to(B, 300, config=SECOND)) == (
        cmd.SetInference(B, SECOND, 300),
    )


def test_diff_orders_shrink_grow_start():
    state = fleet(
        stream(A, inference=EVERY, inference_share_milli=100),
        stream(B, inference=EVERY, inference_share_milli=900, job=job(share_milli=900)),
    )
    commands = asked(state, given_to(A, 700, 400, SHORT), given_to(B, 300, 500, LONG))
    assert commands[:2] == (cmd.SetInference(B, EVERY, 300), cmd.ResizeRetraining(B, JobId(1), 500))
    assert commands[2] == cmd.SetInference(A, EVERY, 700)
    assert commands[3] == cmd.StartRetraining(A, JobId(7), 1, SHORT, 400, 0.5, pytest.approx(2.25))


def test_diff_puts_preparation_after_shrinks():
    state = fleet(
        stream(A, inference=EVERY, inference_share_milli=100),
        stream(B, inference=EVERY, inference_share_milli=1000),
    )
    begin = cmd.BeginPreparation(1, 500, ())
    view = window_view(state, 110 * S, OPTIONS, NEEDS, {})
    commands = diff_plan(view, (given_to(A, 700), given_to(B, 300)), state, [begin])
    assert commands == (cmd.SetInference(B, EVERY, 300), begin, cmd.SetInference(A, EVERY, 700))


def test_diff_numbers_jobs_consecutively():
    state = fleet(stream(A), stream(B))
    commands = asked(state, given_to(A, 0, 200, SHORT), given_to(B, 0, 300, LONG))
    starts = [command for command in commands if isinstance(command, cmd.StartRetraining)]
    assert [(start.stream, start.job) for start in starts] == [(A, 7), (B, 8)]
    for start in starts:
        state = after_command(state, start, 100 * S)
    assert state.next_job == 9


def test_diff_keeps_running_gamma():
    state = fleet(stream(A, inference=EVERY, inference_share_milli=300, job=job(config=LONG)))
    commands = asked(state, given_to(A, 300, 600, SHORT))
    assert commands == (cmd.ResizeRetraining(A, JobId(1), 600),)
    assert after_command(state, commands[0], 100 * S).stream(A).job.config == LONG


def test_diff_with_zero_share_pauses_and_starts_nothing():
    running = fleet(stream(A, inference=EVERY, inference_share_milli=300, job=job()))
    assert asked(running, given_to(A, 300, 0, LONG)) == (cmd.ResizeRetraining(A, JobId(1), 0),)
    idle = fleet(stream(A, inference=EVERY, inference_share_milli=300))
    assert asked(idle, given_to(A, 300, 0, LONG)) == ()


@pytest.mark.parametrize("status", [one for one in Status if one is not Status.SERVING])
def test_diff_ignores_streams_not_serving(status):
    state = fleet(stream(A, faults=FAULTS[status]))
    assert diff_plan(window_view(state, 0, OPTIONS, NEEDS, {}), (given_to(A, 900, 100, SHORT),), state) == ()


def test_diff_of_unoffered_retraining_raises():
    unknown = replace(LONG, epochs=99)
    with pytest.raises(ValueError, match="not offered"):
        asked(fleet(stream(A)), given_to(A, 0, 100, unknown))


shares = st.integers(0, 10).map(lambda steps: steps * 100)


@st.composite
def situations(draw):
    """A fleet within its capacity, and assignments within it too."""
    states, assignments, before, after = [], [], 0, 0
    for number in range(draw(st.integers(1, 5))):
        name = StreamId(f"cam-{number}")
        had, had_job, gets, gets_job = draw(st.tuples(shares, shares, shares, shares))
        had, gets = min(had, CAPACITY - before), min(gets, CAPACITY - after)
        had_job, gets_job = min(had_job, CAPACITY - before - had), min(gets_job, CAPACITY - after - gets)
        running = job(number + 1, had_job) if draw(st.booleans()) else None
        gamma = running.config if running else draw(st.sampled_from([None, SHORT, LONG]))
        config = draw(st.sampled_from([EVERY, SECOND]))
        before += had + (had_job if running else 0)
        after += gets + (gets_job if gamma else 0)
        states.append(stream(name, inference=EVERY, inference_share_milli=had, job=running))
        assignments.append(given_to(name, gets, gets_job if gamma else 0, gamma, config))
    return fleet(*states), tuple(assignments)


def held_milli(state):
    jobs = sum(one.job.share_milli for one in state.streams if one.job is not None)
    return jobs + sum(one.inference_share_milli for one in state.streams)


@settings(max_examples=60)
@given(situations())
def test_diff_keeps_shares_within_capacity(situation):
    state, assignments = situation
    for command in asked(state, *assignments):
        state = after_command(state, command, 100 * S)
        assert held_milli(state) <= CAPACITY


@settings(max_examples=60)
@given(situations())
def test_diff_reaches_plan_and_then_is_empty(situation):
    state, assignments = situation
    commands = asked(state, *assignments)
    assert len({(type(command), command.stream) for command in commands}) == len(commands)
    for command in commands:
        state = after_command(state, command, 100 * S)
    for wanted in assignments:
        reached = state.stream(wanted.stream)
        assert (reached.inference, reached.inference_share_milli) == (
            wanted.inference,
            wanted.inference_share_milli,
        )
        assert (reached.job.share_milli if reached.job else 0) == wanted.retrain_share_milli
    assert asked(state, *assignments) == ()
