"""Executors in front of another one that only look at how the loop waits."""

import threading
import time
from collections.abc import Sequence

from ekya.control.protocols import Batch, Executor
from ekya.core.commands import Command
from ekya.core.units import US_PER_S

_LOOK_US = US_PER_S // 4
"""How often is looked whether the run is to end."""


class StoppedEarlyError(Exception):
    """Somebody ends the run before its last window has closed."""


class Stoppable:
    """An executor that does not wait for a run that is to end.

    Args:
        executor: the one that waits.
        stop: set by any thread.
    """

    def __init__(self, executor: Executor, stop: threading.Event) -> None:
        self._executor = executor
        self._stop = stop
        self._now_us = 0

    def wait(self, until_us: int) -> Batch:
        """As the executor's.

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
        """As the executor's."""
        self._executor.execute(commands)


class Timed:
    """An executor, and how long the loop keeps it waiting: the loop's own work."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._came_back_s: float | None = None
        self.busy_s = 0.0

    def wait(self, until_us: int) -> Batch:
        """As the executor's."""
        if self._came_back_s is not None:
            self.busy_s += time.monotonic() - self._came_back_s
        batch = self._executor.wait(until_us)
        self._came_back_s = time.monotonic()
        return batch

    def execute(self, commands: Sequence[Command]) -> None:
        """As the executor's."""
        self._executor.execute(commands)
