"""The loop's own events: borders of windows, and the deadline of the preparation."""

from dataclasses import replace

import pytest
from byhand import FAULTS, LAMBDAS, OPTIONS, A, B, S

from ekya.control.loop import closes_run
from ekya.control.protocols import Batch
from ekya.control.step import due, next_due_us
from ekya.core import events as ev
from ekya.core.state import OVER, FleetState, Status, StreamState


def window(index, preparing=False, statuses=(Status.SERVING, Status.SERVING)):
    streams = tuple(
        StreamState(name, LAMBDAS, faults=FAULTS[s]) for name, s in zip((A, B), statuses, strict=True)
    )
    opened_us = index * 100 * S
    return FleetState(streams, index, opened_us, opened_us + 100 * S, preparing)


def test_a_run_begins_with_window_0():
    assert due(FleetState(), 0, OPTIONS) == (ev.WindowOpened(0, 0, 100 * S),)


def test_inside_a_window_nothing_is_due():
    assert due(window(1), 200 * S - 1, OPTIONS) == ()
    assert next_due_us(window(1), OPTIONS) == 200 * S


def test_windows_follow_each_other_without_a_gap_however_late_the_loop_is():
    expected = (ev.WindowClosed(200 * S, 1), ev.WindowOpened(200 * S, 2, 300 * S))
    assert due(window(1), 200 * S, OPTIONS) == expected
    assert due(window(1), 207 * S, OPTIONS) == expected


def test_after_the_last_window_none_opens():
    closed = due(window(2), 300 * S, OPTIONS)
    assert closed == (ev.WindowClosed(300 * S, 2),)
    assert closes_run(Batch(300 * S, closed))
    assert not closes_run(Batch(200 * S, due(window(1), 200 * S, OPTIONS)))
    assert not closes_run(Batch(200 * S, ()))


@pytest.mark.parametrize("gone", OVER)
def test_a_run_without_streams_ends_with_its_window(gone):
    endless = replace(OPTIONS, windows=None)
    assert due(window(7, statuses=(gone, gone)), 800 * S, endless) == (ev.WindowClosed(800 * S, 7),)
    for status in (Status.SERVING, Status.RESTARTING, Status.LOST):
        assert len(due(window(7, statuses=(gone, status)), 800 * S, endless)) == 2


@pytest.mark.parametrize("gone", OVER)
def test_a_run_without_streams_waits_for_those_that_are_still_to_join(gone):
    waits = replace(OPTIONS, windows=None, last_join_us=850 * S)
    assert len(due(window(7, statuses=(gone, gone)), 800 * S, waits)) == 2
    assert due(window(8, statuses=(gone, gone)), 900 * S, waits) == (ev.WindowClosed(900 * S, 8),)


def test_preparation_has_a_deadline():
    preparing = window(1, preparing=True)
    assert next_due_us(preparing, OPTIONS) == 115 * S
    assert due(preparing, 115 * S - 1, OPTIONS) == ()
    assert due(preparing, 115 * S, OPTIONS) == (ev.PreparationEnded(115 * S, 1),)
    assert due(preparing, 116 * S, OPTIONS) == (ev.PreparationEnded(116 * S, 1),)


def test_a_preparation_longer_than_the_window_ends_with_it():
    assert next_due_us(window(1, preparing=True), replace(OPTIONS, preparation_us=500 * S)) == 200 * S
