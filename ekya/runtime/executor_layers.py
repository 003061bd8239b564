"""Executors in front of another one: how the loop waits, streams that join late, and GPU use of a window."""

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from ekya.control.protocols import Batch, Executor
from ekya.core import events as ev
from ekya.core.commands import Command
from ekya.core.events import GpuMeasured
from ekya.core.gpus import GpuUse
from ekya.core.units import US_PER_S, StreamId

_LOOK_US = US_PER_S // 4
"""Interval between two checks for an early end of the run."""


class StoppedEarlyError(Exception):
    """The run was ended before its last window has closed."""


class Stoppable:
    """Executor whose wait is interrupted when the run is to end early.

    Args:
        executor: does the waiting.
        stop: set by any thread.
    """

    def __init__(self, executor: Executor, stop: threading.Event) -> None:
        self._executor = executor
        self._stop = stop
        self._now_us = 0

    def wait(self, until_us: int) -> Batch:
        """Waits as the inner executor does.

        Raises:
            StoppedEarlyError: the run is to end.
        """
        while not self._stop.is_set():
            batch = self._executor.wait(min(until_us, self._now_us + _LOOK_US))
            self._now_us = batch.now_us
            if batch.events or batch.now_us >= until_us:
                return batch
        raise StoppedEarlyError

    def execute(self, commands: Sequence[Command]) -> None:
        """Passes commands on."""
        self._executor.execute(commands)


class TimedExecutor:
    """Executor that measures the time the loop spends between two waits, in ``busy_s``."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._came_back_s: float | None = None
        self.busy_s = 0.0

    def wait(self, until_us: int) -> Batch:
        """Waits as the inner executor does."""
        if self._came_back_s is not None:
            self.busy_s += time.monotonic() - self._came_back_s
        batch = self._executor.wait(until_us)
        self._came_back_s = time.monotonic()
        return batch

    def execute(self, commands: Sequence[Command]) -> None:
        """Passes commands on."""
        self._executor.execute(commands)


class LateStreams:
    """Holds back the events of streams that have not been added.

    Args:
        added: the times at which streams are added.
    """

    def __init__(self, added: Sequence[ev.StreamAdded]) -> None:
        self._added = deque(sorted(added, key=lambda event: event.t_us))
        self._held: dict[StreamId, list[ev.Event]] = {event.stream: [] for event in added}

    @property
    def next_us(self) -> int | None:
        """Run time at which the next stream joins; None when all have joined."""
        return self._added[0].t_us if self._added else None

    def join(self, now_us: int) -> list[ev.Event]:
        """Returns the due StreamAdded events, each followed by the events held back for its stream."""
        told: list[ev.Event] = []
        while self._added and self._added[0].t_us <= now_us:
            added = self._added.popleft()
            held = self._held.pop(added.stream)
            told += [added, *(replace(event, t_us=max(event.t_us, added.t_us)) for event in held)]
        return told

    def let_through(self, event: ev.Event) -> list[ev.Event]:
        """Returns the event, unless its stream has not joined: then holds it back, or drops a measurement."""
        match event:
            case ev.WindowOpened() | ev.WindowClosed() | ev.PreparationEnded() | ev.GpuMeasured():
                return [event]
            case ev.ShareResized() | ev.ShareOverdue() | ev.CapacityLent() | ev.Warned() | ev.ProfilerBack():
                return [event]
            case _ if event.stream not in self._held:
                return [event]
            case ev.ShareMeasured() | ev.NeedMeasured() | ev.FramesCounted():
                return []
            case _:
                self._held[event.stream].append(event)
                return []


class Meter(Protocol):
    """Sums up GPU use."""

    def take(self) -> tuple[GpuUse, ...]:
        """Returns GPU use since the last call; empty if no GPU can be read."""


class MeteredExecutor:
    """An ``Executor`` in front of another one.

    Args:
        executor: carries commands out.
        meter: of the GPUs.
        window_us: length of a window; windows follow each other from run time 0.
        from_us: run time at which this process began to measure; a resumed run begins in a later window.
    """

    def __init__(self, executor: Executor, meter: Meter, window_us: int, from_us: int = 0) -> None:
        self._executor = executor
        self._meter = meter
        self._window_us = window_us
        self._window = from_us // window_us

    def wait(self, until_us: int) -> Batch:
        """Waits as the inner executor does; adds a window's GPU use to the first batch after the window.

        The loop closes the window in the same step, so the journal has both in one line.
        """
        batch = self._executor.wait(until_us)
        end_us = (self._window + 1) * self._window_us
        if batch.now_us < end_us:
            return batch
        closed, self._window = self._window, batch.now_us // self._window_us
        used = self._meter.take()
        if not used:
            return batch
        return Batch(batch.now_us, (*batch.events, GpuMeasured(end_us, closed, used)))

    def execute(self, commands: Sequence[Command]) -> None:
        """Passes commands on."""
        self._executor.execute(commands)
