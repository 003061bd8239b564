"""The state of this machine, X_i: what is in use of processor, GPU and memory, at the 95th percentile."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pynvml

from ekya.fleet.policy.places import NodeState
from ekya.gpu.nvml import list_gpus
from ekya.gpu.reader import GpuReader, NvmlReader

PERCENTILE = 95.0
"""Of what is read while something runs (§IV.C.1)."""

EVERY_S = 0.25
"""Between two readings: the kernel counts in hundredths of a second, so shorter ones would be coarse."""

STAT, MEMINFO = Path("/proc/stat"), Path("/proc/meminfo")


@dataclass(frozen=True, slots=True)
class Ticks:
    """The kernel's count of processor time since it started.

    Attributes:
        busy, idle: over all cores; time for which a host took a virtual core away counts as busy.
    """

    busy: int
    idle: int

    def since(self, before: "Ticks") -> float:
        """Part of the time in between that was busy; 0 where none has passed."""
        busy, idle = self.busy - before.busy, self.idle - before.idle
        return busy / (busy + idle) if busy + idle > 0 else 0.0


def ticks(text: str) -> Ticks:
    """Of ``/proc/stat``'s first line: user, nice, system, idle, iowait, irq, softirq, steal (and guests)."""
    counts = [int(word) for word in text.splitlines()[0].split()[1:9]]
    idle = counts[3] + counts[4]
    return Ticks(sum(counts) - idle, idle)


def memory_in_use(text: str) -> float:
    """Of ``/proc/meminfo``: what a new process could not have, in parts of one."""
    counts = kilobytes(text)
    return 1 - counts["MemAvailable"] / counts["MemTotal"]


def kilobytes(text: str) -> dict[str, int]:
    """Of a file of the kernel's with lines like ``MemTotal:  16 kB``; lines without a number are left out."""
    words = (line.split() for line in text.splitlines())
    return {word[0].rstrip(":"): int(word[1]) for word in words if len(word) == 3 and word[2] == "kB"}


@dataclass(slots=True, eq=False)
class Watch:
    """Readings while something runs."""

    states: list[NodeState] = field(default_factory=list)

    def state(self) -> NodeState:
        """Each metric at the 95th percentile.

        Raises:
            ValueError: nothing was read yet.
        """
        if not self.states:
            raise ValueError("no state was read; watch for a second or more")
        cpu, gpu, mem = (
            float(np.percentile([getattr(one, name) for one in self.states], PERCENTILE))
            for name in ("cpu", "gpu", "mem")
        )
        return NodeState(cpu, gpu, mem)


@contextmanager
def watched(
    every_s: float = EVERY_S,
    stat: Callable[[], str] = STAT.read_text,
    meminfo: Callable[[], str] = MEMINFO.read_text,
) -> Iterator[Watch]:
    """Reads this machine's state again and again as long as the block lasts, and at least once.

    A machine without an NVIDIA GPU has none in use: 0, and it is not guessed.

    Args:
        every_s: between two readings.
        stat, meminfo: what the kernel says; tests say it themselves.
    """
    watch, ended = Watch(), threading.Event()
    reader = _gpu_reader()

    def read_on() -> None:
        before = ticks(stat())
        # A last reading would be of a moment, and coarse; but there has to be one.
        while not ended.wait(every_s) or not watch.states:
            now = ticks(stat())
            watch.states.append(NodeState(now.since(before), _gpu_activity(reader), memory_in_use(meminfo())))
            before = now

    thread = threading.Thread(target=read_on, name="states", daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        ended.set()
        thread.join()
        if reader is not None:
            reader.close()


def _gpu_reader() -> GpuReader | None:
    """Of the first GPU, which is the one that an edge device has."""
    gpus = list_gpus().gpus
    return NvmlReader(gpus[0].uuid) if gpus else None


def _gpu_activity(reader: GpuReader | None) -> float:
    if reader is None:
        return 0.0
    try:
        return reader.read().sm_activity or 0.0
    except pynvml.NVMLError:
        return 0.0
