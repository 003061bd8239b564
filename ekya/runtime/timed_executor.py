"""Executors in front of another one that only concern how the loop waits."""

import threading
import time
from collections.abc import Sequence

from ekya.control.protocols import Batch, Executor
from ekya.core.commands import Command
from ekya.core.units import US_PER_S

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
