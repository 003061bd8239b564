"""State of a site's machine without the trainings of others, X_i of Deep-Edge, while its server runs."""

import threading
from collections import deque
from collections.abc import Callable

from ekya.fleet.policy.places import Machine, NodeState
from ekya.fleet.run.deep_edge.states import Watch, host_use

EVERY_S = 1.0
READINGS = 60
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
        every_s: float = EVERY_S,
    ) -> None:
        self._kind, self._lends, self._use, self._every_s = kind, lends, use, every_s
        self._readings: deque[NodeState] = deque(maxlen=READINGS)
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
