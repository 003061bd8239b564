"""Level on which a job's batches run; changes only between two batches."""

import threading

from ekya.gpu.backends.meter import GpuStreams
from ekya.gpu.green.levels import Level


class CurrentLevel:
    """Holds a job's current level. Thread-safe."""

    def __init__(self, streams: GpuStreams) -> None:
        self._streams = streams
        self._changed = threading.Condition()
        self._level: Level | None = None
        self._inside = 0
        self._switching = False
        self._released = False

    @property
    def level(self) -> Level | None:
        """Level of the next batch; None where the batch will wait."""
        return self._level

    @property
    def released(self) -> bool:
        """True once the job is ending, so that no batch waits."""
        return self._released

    def move_to(self, level: Level | None, within_s: float) -> bool:
        """Moves to another level once no batch is running and the old stream's work is done.

        Batches that would begin meanwhile wait.

        Returns:
            False, with the level unchanged, if a batch ran longer than ``within_s`` or the job is ending.
        """
        with self._changed:
            self._switching = True
            self._changed.wait_for(lambda: self._inside == 0 or self._released, within_s)
            is_idle = self._inside == 0 and not self._released
        try:
            if is_idle:
                if self._level is not None:
                    self._streams.synchronise(self._level.stream)
                self._level = level
        finally:
            with self._changed:
                self._switching = False
                self._changed.notify_all()
        return is_idle

    def begin(self, wait_s: float | None) -> bool:
        """Registers a batch; False without a level, after one wait of ``wait_s`` (None: for any change)."""
        with self._changed:
            if not self._switching and (self._level is not None or self._released):
                self._inside += 1
                return True
            self._changed.wait(wait_s)
            return False

    def end(self) -> bool:
        """Unregisters a batch; returns True for the last batch of a job that is ending."""
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()
            return self._released and self._inside == 0

    def wake(self) -> None:
        """Wakes all threads that wait for a level."""
        with self._changed:
            self._changed.notify_all()

    def release(self) -> bool:
        """Ends every wait; returns True if no batch is running."""
        with self._changed:
            self._released = True
            self._changed.notify_all()
            return self._inside == 0
