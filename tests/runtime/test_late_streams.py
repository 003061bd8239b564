"""Tests that a stream's events are held back until it is added, except measurements, which are dropped."""

from ekya.core import events as ev
from ekya.core.configs import InferenceConfig
from ekya.core.units import StreamId
from ekya.runtime.driver.stream_changes import LateStreams

A, B, S = StreamId("a"), StreamId("b"), 1_000_000
NOW, LATER = ev.StreamAdded(0, A, ()), ev.StreamAdded(5 * S, B, ())


def test_join_returns_each_stream_at_its_time():
    late = LateStreams([LATER, NOW])
    assert late.next_us == 0
    assert late.join_due(0) == [NOW]
    assert late.next_us == 5 * S
    assert late.join_due(5 * S - 1) == []
    assert late.join_due(6 * S) == [LATER]
    assert late.next_us is None


def test_events_before_joining_are_held_back_or_dropped():
    late = LateStreams([NOW, LATER])
    late.join_due(0)
    died = ev.WorkerDied(2 * S, B, ev.Role.INFERENCE, "killed")
    assert late.let_through(died) == []
    assert late.let_through(ev.ShareMeasured(3 * S, B, ev.Role.INFERENCE, 0)) == []
    assert late.let_through(ev.NeedMeasured(3 * S, B, InferenceConfig(1, 32), 120)) == []
    assert late.let_through(ev.ShareMeasured(3 * S, A, ev.Role.INFERENCE, 0)) != []
    assert late.let_through(ev.PreparationEnded(3 * S, 1)) != []
    assert late.join_due(5 * S) == [LATER, ev.WorkerDied(5 * S, B, ev.Role.INFERENCE, "killed")]
    assert late.let_through(died) == [died]
