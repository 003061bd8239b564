"""State of this machine, X_i: use of processor, GPU and memory, at the 95th percentile."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import psutil
import pynvml

from ekya.fleet.policy.places import Machine, NodeState
from ekya.gpu.nvml import list_gpus
from ekya.gpu.window_meter import GpuReader, NvmlReader

PERCENTILE = 95.0
"""Of the readings while something runs (§IV.C.1)."""

EVERY_S = 0.25
"""Interval of the readings. The kernel counts in hundredths of a second: a shorter one would be coarse."""


def host_use() -> tuple[float, float]:
    """Returns the use of the processor since this thread's last call, and of the memory, as parts of one.

    The processor's covers all cores, and stolen time of a virtual core counts as use. The memory's is what a
    new process could not have.
    """
    return psutil.cpu_percent() / 100, psutil.virtual_memory().percent / 100


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
def watched(every_s: float = EVERY_S, use: Callable[[], tuple[float, float]] = host_use) -> Iterator[Watch]:
    """Reads this machine's state periodically for the duration of the block, and at least once.

    The GPU metric is 0 on a machine without an NVIDIA GPU.

    Args:
        every_s: between two readings.
        use: reads the use of processor and memory; tests pass another.
    """
    watch, ended = Watch(), threading.Event()
    reader = _gpu_reader()

    def read_on() -> None:
        use()
        # No last reading at the end: its interval would be short and the value coarse. But there must be one.
        while not ended.wait(every_s) or not watch.states:
            cpu, memory = use()
            watch.states.append(NodeState(cpu, _gpu_activity(reader), memory))

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
        return reader.read_counters().sm_activity or 0.0
    except pynvml.NVMLError:
        return 0.0


_STATE_EVERY_S = 1.0
_READINGS = 60
"""Number of the newest readings whose 95th percentile is the state."""


class MachineState:
    """Reads the use of processor and memory in a thread until ``close``. Thread-safe.

    A machine cannot measure its state without a training while one runs; its last state holds then.

    Args:
        kind: of the machine, as in the profiler's points.
        lends: whether a training of another server runs here.
        use: reads the use of processor and memory; tests pass another.
        every_s: between two readings.
    """

    def __init__(
        self,
        kind: str,
        lends: Callable[[], bool],
        use: Callable[[], tuple[float, float]] = host_use,
        every_s: float = _STATE_EVERY_S,
    ) -> None:
        self._kind, self._lends, self._use, self._every_s = kind, lends, use, every_s
        self._readings: deque[NodeState] = deque(maxlen=_READINGS)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, name="machine state", daemon=True)
        self._thread.start()

    def __call__(self) -> Machine | None:
        """Returns kind and state; None before the first reading."""
        readings = list(self._readings)
        return (self._kind, Watch(readings).state()) if readings else None

    def close(self) -> None:
        """Reads no more."""
        self._ended.set()
        self._thread.join()

    def _read(self) -> None:
        self._use()  # The first reading is since the last one.
        while not self._ended.wait(self._every_s):
            cpu, memory = self._use()
            if not self._lends():
                # Only inference of CPU machines is profiled live so far; a GPU counts as idle.
                self._readings.append(NodeState(cpu, 0.0, memory))
