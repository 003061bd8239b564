"""The loop's own events: borders of windows, and the deadline of the preparation."""

from dataclasses import replace

import pytest
from byhand import FAULTS, LAMBDAS, OPTIONS, A, B, S

from ekya.control.loop import closes_run
from ekya.control.protocols import Batch
from ekya.control.step import loop_events_due, next_due_us
from ekya.core import events as ev
from ekya.core.state import FleetState, RunningPreparation, StreamState
from ekya.core.stream_faults import OVER, Status


def window(index, preparing=False, statuses=(Status.SERVING, Status.SERVING)):
    streams = tuple(
        StreamState(name, LAMBDAS, faults=FAULTS[s]) for name, s in zip((A, B), statuses, strict=True)
    )
    opened_us = index * 100 * S
    preparation = RunningPreparation(opened_us, OPTIONS.preparation_share_milli) if preparing else None
    return FleetState(streams, index, opened_us, opened_us + 100 * S, preparation)


def test_due_before_first_window_opens_it():
    assert loop_events_due(FleetState(), 0, OPTIONS) == (ev.WindowOpened(0, 0, 100 * S),)


def test_due_inside_window_is_empty():
    assert loop_events_due(window(1), 200 * S - 1, OPTIONS) == ()
    assert next_due_us(window(1), OPTIONS) == 200 * S


def test_due_opens_windows_without_gap():
    expected = (ev.WindowClosed(200 * S, 1), ev.WindowOpened(200 * S, 2, 300 * S))
    assert loop_events_due(window(1), 200 * S, OPTIONS) == expected
    assert loop_events_due(window(1), 207 * S, OPTIONS) == expected


def test_due_after_last_window_only_closes():
    closed = loop_events_due(window(2), 300 * S, OPTIONS)
    assert closed == (ev.WindowClosed(300 * S, 2),)
    assert closes_run(Batch(300 * S, closed))
    assert not closes_run(Batch(200 * S, loop_events_due(window(1), 200 * S, OPTIONS)))
    assert not closes_run(Batch(200 * S, ()))


@pytest.mark.parametrize("gone", OVER)
def test_due_without_streams_ends_run(gone):
    endless = replace(OPTIONS, windows=None)
    assert loop_events_due(window(7, statuses=(gone, gone)), 800 * S, endless) == (
        ev.WindowClosed(800 * S, 7),
    )
    for status in (Status.SERVING, Status.RESTARTING, Status.LOST):
        assert len(loop_events_due(window(7, statuses=(gone, status)), 800 * S, endless)) == 2


@pytest.mark.parametrize("gone", OVER)
def test_due_without_streams_waits_for_joiners(gone):
    waits = replace(OPTIONS, windows=None, last_join_us=850 * S)
    assert len(loop_events_due(window(7, statuses=(gone, gone)), 800 * S, waits)) == 2
    assert loop_events_due(window(8, statuses=(gone, gone)), 900 * S, waits) == (ev.WindowClosed(900 * S, 8),)


def test_due_ends_preparation_at_its_limit():
    preparing = window(1, preparing=True)
    assert next_due_us(preparing, OPTIONS) == 115 * S
    assert loop_events_due(preparing, 115 * S - 1, OPTIONS) == ()
    assert loop_events_due(preparing, 115 * S, OPTIONS) == (ev.PreparationEnded(115 * S, 1),)
    assert loop_events_due(preparing, 116 * S, OPTIONS) == (ev.PreparationEnded(116 * S, 1),)


def test_due_preparation_limit_is_cut_by_window():
    assert next_due_us(window(1, preparing=True), replace(OPTIONS, preparation_us=500 * S)) == 200 * S
