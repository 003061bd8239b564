"""An executor that also tells, when a window closes, what the GPUs did in it."""

from collections.abc import Sequence
from typing import Protocol

from ekya.control.protocols import Batch, Executor
from ekya.core.commands import Command
from ekya.core.events import GpuMeasured
from ekya.core.gpu_use import GpuUse


class Meter(Protocol):
    """What sums the GPUs up."""

    def take(self) -> tuple[GpuUse, ...]:
        """What they did since this was last called; empty where none answers."""


class MeteredExecutor:
    """An ``Executor`` in front of another one.

    Args:
        executor: the one that carries commands out.
        meter: of the GPUs.
        window_us: windows follow each other from run time 0 on.
        from_us: run time at which this process began to measure; a resumed run goes on in a later window.
    """

    def __init__(self, executor: Executor, meter: Meter, window_us: int, from_us: int = 0) -> None:
        self._executor = executor
        self._meter = meter
        self._window_us = window_us
        self._window = from_us // window_us

    def wait(self, until_us: int) -> Batch:
        """As the executor's; what the GPUs did in a window comes with the batch that is the first after it.

        The loop closes the window in the same turn, so the journal has both in one line.
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
        """As the executor's."""
        self._executor.execute(commands)
