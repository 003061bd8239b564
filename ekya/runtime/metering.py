"""Executor that adds a GPU use event when a window closes."""

from collections.abc import Sequence
from typing import Protocol

from ekya.control.protocols import Batch, Executor
from ekya.core.commands import Command
from ekya.core.events import GpuMeasured
from ekya.core.gpu_use import GpuUse


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
