"""Tests of streams of a trace that end before others."""

from dataclasses import replace

import pytest

from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.planning.schedulers.registry import make_scheduler
from ekya.simulation.executor import VirtualExecutor
from ekya.simulation.trace.estimates import Estimates
from ekya.simulation.trace.generate import generate_trace
from ekya.simulation.trace.simulate import Conditions, simulate, summary_of
from ekya.simulation.trace.world import TraceWorld

TRACE = generate_trace(5, 3, 4)
FIRST = TRACE.streams[0]
WINDOW_US = TRACE.window_us


def with_first(windows, last_part=1.0):
    short = replace(FIRST, windows=FIRST.windows[:windows], last_part=last_part)
    return replace(TRACE, streams=(short, *TRACE.streams[1:]))


def accuracy_of_first(trace):
    """Returns the accuracy in window 1 under the base model, and the events until the last window is over."""
    options = Conditions(gpus=2.0).loop_options(trace)
    executor = VirtualExecutor(TraceWorld(trace, options, Estimates()), options.checkpoint_delay_us)
    executor.wait(0)
    executor.execute_commands([cmd.SetInference(FIRST.stream, TRACE.inference_configs[-1], 1000)])
    told = []
    while executor.now_us < 4 * WINDOW_US:
        happened = executor.wait(4 * WINDOW_US).events
        told += [event for event in happened if not isinstance(event, ev.ShareResized)]
    return executor.world.mean_accuracy(FIRST.stream, 1), told


@pytest.mark.parametrize(("last_part", "ends"), [(0.5, 1.5), (1.0, 2.0)])
def test_trace_end_of_a_camera_is_reported_once(last_part, ends):
    accuracy, told = accuracy_of_first(with_first(2, last_part))
    assert told == [ev.StreamEnded(round(ends * WINDOW_US), FIRST.stream)]
    assert accuracy == pytest.approx(accuracy_of_first(TRACE)[0])


def test_trace_stream_longer_than_run_has_no_end():
    assert accuracy_of_first(TRACE)[1] == []


@pytest.mark.parametrize("scheduler", ["ekya", "uniform", "reuse", "oracle"])
def test_trace_shorter_stream_is_played_beside_others(scheduler):
    played = simulate(with_first(2), make_scheduler(scheduler), Conditions(gpus=1.5))
    assert [len(windows) for windows in played.accuracy.values()] == [2, 4, 4]
    ends = [event.t_us for turn in played.steps for event in turn.events if isinstance(event, ev.StreamEnded)]
    assert ends == [2 * WINDOW_US]
    later = [turn.plan for turn in played.steps if turn.plan is not None and turn.now_us >= ends[0]]
    assert later
    assert {of.stream for plan in later for of in plan.phases[0].assignments} == {
        stream.stream for stream in TRACE.streams[1:]
    }
    entries = summary_of(played)["streams"][FIRST.stream]["windows"]
    assert [window["accuracy"] is None for window in entries] == [False, False, True, True]
