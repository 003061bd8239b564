"""Tests of when the GPU use of a window is reported."""

from dataclasses import replace

import pytest

from ekya.control.protocols import Batch
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.gpus import GpuUse
from ekya.core.units import StreamId
from ekya.runtime.shares.gpu_memory import MeteredExecutor

WINDOW_US = 10_000_000
CAM = StreamId("cam")
USE = GpuUse(0, "GPU-1", WINDOW_US, 8, 4, 5, 0.5, "sm-utilization", 90.0, 60.0, 900.0, "counter", 11)


class Executor:
    """Executor whose waits end at given times."""

    def __init__(self, *times_us):
        self._times_us, self.executed = list(times_us), []

    def wait(self, until_us):
        now_us = self._times_us.pop(0)
        return Batch(now_us, (ev.StreamBack(now_us, CAM),))

    def execute_commands(self, commands):
        self.executed += commands


class Meter:
    """Meter that numbers its readings."""

    def __init__(self, silent=False):
        self.taken, self._silent = 0, silent

    def take(self):
        self.taken += 1
        return () if self._silent else (replace(USE, readings=self.taken),)


def told(executor, turns):
    return [
        event for _ in range(turns) for event in executor.wait(0).events if isinstance(event, ev.GpuMeasured)
    ]


def test_gpu_use_of_a_window_is_in_the_first_batch_after_it():
    times = [0, WINDOW_US - 1, WINDOW_US, WINDOW_US + 5, 2 * WINDOW_US + 7]
    meter = Meter()
    measured = told(MeteredExecutor(Executor(*times), meter, WINDOW_US), len(times))
    assert [(event.t_us, event.window) for event in measured] == [(WINDOW_US, 0), (2 * WINDOW_US, 1)]
    assert [event.gpus[0].readings for event in measured] == [1, 2]
    assert meter.taken == 2


def test_other_events_precede_gpu_use_and_commands_pass():
    behind = Executor(WINDOW_US)
    executor = MeteredExecutor(behind, Meter(), WINDOW_US)
    batch = executor.wait(0)
    assert [type(event) for event in batch.events] == [ev.StreamBack, ev.GpuMeasured]
    executor.execute_commands([cmd.EndPreparation(0)])
    assert behind.executed == [cmd.EndPreparation(0)]


def test_gpus_that_cannot_be_read_are_not_reported():
    assert told(MeteredExecutor(Executor(WINDOW_US, 2 * WINDOW_US), Meter(silent=True), WINDOW_US), 2) == []


def test_missed_windows_are_not_reported_later():
    measured = told(MeteredExecutor(Executor(3 * WINDOW_US, 4 * WINDOW_US), Meter(), WINDOW_US), 2)
    assert [event.window for event in measured] == [0, 3]


@pytest.mark.parametrize("from_us", [3 * WINDOW_US, 3 * WINDOW_US + 4])
def test_resumed_run_reports_from_its_window_on(from_us):
    executor = MeteredExecutor(Executor(3 * WINDOW_US + 5, 4 * WINDOW_US), Meter(), WINDOW_US, from_us)
    assert [event.window for event in told(executor, 2)] == [3]


def test_gpu_use_is_ordered_before_the_end_of_the_window():
    closed, measured = ev.WindowClosed(WINDOW_US, 0), ev.GpuMeasured(WINDOW_US, 0, (USE,))
    assert ev.in_order([closed, measured]) == (measured, closed)
