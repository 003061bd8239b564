"""Tests of joint retrainings as a planner sees them: one stream gains for all, and its partners wait."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optimum.problems import problem
from views import window_views

from ekya.core.shares import Work
from ekya.core.units import JobId
from ekya.core.view import Objective, RunningRetraining
from ekya.planning.schedulers.allocation import shares_of
from ekya.planning.schedulers.joint import ways_to_retrain
from ekya.planning.schedulers.registry import make_scheduler

few = settings(max_examples=25)


def paired(view, one=0, other=1):
    """Returns the view in which two of the streams can be retrained together."""
    streams = list(view.streams)
    first, second = streams[one], streams[other]
    streams[one] = replace(first, partners=(second.stream,))
    streams[other] = replace(second, partners=(first.stream,))
    return replace(view, streams=tuple(streams))


@pytest.fixture
def view():
    return problem(7000, 4, 1.0, "linear")


def gains(stream):
    """Returns by γ what a stream expects of it."""
    return {
        one.config: max(one.accuracy_after - stream.accuracy, 0.0) * stream.weight
        for one in stream.retrain_options
    }


def test_streams_without_partners_are_retrained_alone(view):
    assert ways_to_retrain(view) == (view,)


def test_one_of_two_partners_is_retrained_and_gains_for_both(view):
    alone, together = ways_to_retrain(paired(view))
    assert alone == view
    waiting = [one for one in together.streams if one.served_by]
    (leader,) = [one for one in together.streams if one.partners]
    assert [one.served_by for one in waiting] == [leader.stream]
    assert (leader.partners, waiting[0].retrain_options) == ((waiting[0].stream,), ())
    before = {one.stream: one for one in view.streams}
    own, its = gains(before[leader.stream]), gains(before[waiting[0].stream])
    assert gains(leader) == pytest.approx({gamma: own[gamma] + its.get(gamma, 0.0) for gamma in own})
    assert max(own.values()) >= max(its.values()), "the one that expects most is retrained"
    costs = [[one.gpu_s for one in of.retrain_options] for of in (leader, before[leader.stream])]
    assert costs[0] == costs[1]
    promises = [max(one.accuracy_after, leader.accuracy) for one in before[leader.stream].retrain_options]
    assert [one.own_accuracy_after for one in leader.retrain_options] == pytest.approx(promises)


def test_stream_that_cannot_be_retrained_is_nobodys_partner(view):
    first, second, *others = paired(view).streams
    idle = replace(second, retrain_options=())
    assert len(ways_to_retrain(replace(view, streams=(first, idle, *others)))) == 1


def test_partner_of_a_running_retraining_waits_in_every_way(view):
    first, second, *others = view.streams
    option = first.retrain_options[0]
    job = RunningRetraining(JobId(1), option, 100, partners=(second.stream,))
    running = replace(view, streams=(replace(first, retrain_options=(), running=job), second, *others))
    (way,) = ways_to_retrain(running)
    leader, waiting = way.streams[:2]
    assert (waiting.served_by, waiting.retrain_options) == (first.stream, ())
    gain = gains(second).get(option.config, 0.0) / first.weight
    assert leader.running.option.accuracy_after == pytest.approx(
        max(option.accuracy_after, first.accuracy) + gain if gain else option.accuracy_after
    )


def test_worst_stream_is_not_helped_by_a_sum_of_gains(view):
    assert len(ways_to_retrain(replace(paired(view), objective=Objective.MAX_MIN))) == 1


@pytest.mark.parametrize("gpus", [0.4, 1.0, 3.0])
def test_joint_retraining_pays_where_gpus_are_few(gpus):
    """Two streams that learn the same: with one retraining for both the objective is higher."""
    view = problem(7000, 4, gpus, "linear")
    first, _, *others = view.streams
    twin = replace(first, stream=view.streams[1].stream)
    alone, together = ways_to_retrain(paired(replace(view, streams=(first, twin, *others))))
    plan = make_scheduler("ekya").plan
    assert plan(together).expected_accuracy >= plan(alone).expected_accuracy


@few
@given(view=window_views(), pairs=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=4))
def test_partners_get_no_share_and_nobody_is_in_two_groups(view, pairs):
    partners = {stream.stream: set() for stream in view.streams}
    for pair in pairs:
        if max(pair) < len(view.streams) and pair[0] != pair[1]:
            one, other = (view.streams[place].stream for place in pair)
            partners[one].add(other)
            partners[other].add(one)
    streams = [replace(one, partners=tuple(sorted(partners[one.stream]))) for one in view.streams]
    for way in ways_to_retrain(replace(view, streams=tuple(streams))):
        grouped = [
            one for stream in way.streams for one in (stream.stream, *stream.partners) if stream.partners
        ]
        assert len(grouped) == len(set(grouped))
        shares = shares_of(make_scheduler("ekya").plan(way).phases[0])
        waiting = {stream.stream for stream in way.streams if stream.served_by}
        assert not [
            job
            for job, milli in shares.items()
            if job.work is Work.RETRAINING and milli and job.stream in waiting
        ]
        assert sum(shares.values()) <= view.capacity_milli
