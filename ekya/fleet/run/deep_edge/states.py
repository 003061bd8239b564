"""State of this machine, X_i: use of processor, GPU and memory, at the 95th percentile."""

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
"""Of the readings while something runs (§IV.C.1)."""

EVERY_S = 0.25
"""Interval of the readings. The kernel counts in hundredths of a second: a shorter one would be coarse."""

STAT, MEMINFO = Path("/proc/stat"), Path("/proc/meminfo")


@dataclass(frozen=True, slots=True)
class Ticks:
    """The kernel's count of processor time since boot.

    Attributes:
        busy, idle: over all cores; stolen time of a virtual core counts as busy.
    """

    busy: int
    idle: int

    def since(self, before: "Ticks") -> float:
        """Returns the busy part of the time in between; 0 where none has passed."""
        busy, idle = self.busy - before.busy, self.idle - before.idle
        return busy / (busy + idle) if busy + idle > 0 else 0.0


def ticks(text: str) -> Ticks:
    """Parses the first line of ``/proc/stat``.

    Fields: user, nice, system, idle, iowait, irq, softirq, steal (and guests, which are part of user).
    """
    counts = [int(word) for word in text.splitlines()[0].split()[1:9]]
    idle = counts[3] + counts[4]
    return Ticks(sum(counts) - idle, idle)


def memory_in_use(text: str) -> float:
    """Returns the memory that a new process could not have, from ``/proc/meminfo``, as a part of one."""
    counts = kilobytes(text)
    return 1 - counts["MemAvailable"] / counts["MemTotal"]


def kilobytes(text: str) -> dict[str, int]:
    """Parses a kernel file with lines like ``MemTotal:  16 kB``; lines without a number are left out."""
    words = (line.split() for line in text.splitlines())
    return {word[0].rstrip(":"): int(word[1]) for word in words if len(word) == 3 and word[2] == "kB"}


@dataclass(slots=True, eq=False)
class Watch:
    """Readings while something runs."""

    states: list[NodeState] = field(default_factory=list)

    def state(self) -> NodeState:
        """Returns each metric at the 95th percentile.

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
    """Reads this machine's state periodically for the duration of the block, and at least once.

    The GPU metric is 0 on a machine without an NVIDIA GPU.

    Args:
        every_s: between two readings.
        stat, meminfo: return the contents of the kernel's files; tests pass others.
    """
    watch, ended = Watch(), threading.Event()
    reader = _gpu_reader()

    def read_on() -> None:
        before = ticks(stat())
        # No last reading at the end: its interval would be short and the value coarse. But there must be one.
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
    """Opens a reader of the first GPU; an edge device has only one."""
    gpus = list_gpus().gpus
    return NvmlReader(gpus[0].uuid) if gpus else None


def _gpu_activity(reader: GpuReader | None) -> float:
    if reader is None:
        return 0.0
    try:
        return reader.read().sm_activity or 0.0
    except pynvml.NVMLError:
        return 0.0
