"""Where a job's batches run, and that this changes only between two of them."""

import threading

from ekya.gpu.gpu_streams import GpuStreams
from ekya.gpu.levels import Level


class Seat:
    """A job's level. Every method may be called by any thread."""

    def __init__(self, streams: GpuStreams) -> None:
        self._streams = streams
        self._changed = threading.Condition()
        self._level: Level | None = None
        self._inside = 0
        self._switching = False
        self._released = False

    @property
    def level(self) -> Level | None:
        """Where the next batch will run; None where it will wait."""
        return self._level

    @property
    def released(self) -> bool:
        """Whether nobody waits for anything here any more."""
        return self._released

    def move_to(self, level: Level | None, within_s: float) -> bool:
        """To another level when no batch is under way and the old stream's work is done.

        Batches that are to begin meanwhile wait, and no others do.

        Returns:
            False if a batch was under way for longer than ``within_s``, or the job is ending: it stays.
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
        """Counts a batch in; False if there was no level, after waiting so long (None: for any news)."""
        with self._changed:
            if not self._switching and (self._level is not None or self._released):
                self._inside += 1
                return True
            self._changed.wait(wait_s)
            return False

    def end(self) -> bool:
        """Counts a batch out; True if it was the last one of a job that is ending."""
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()
            return self._released and self._inside == 0

    def wake(self) -> None:
        """Whoever waits for a level looks again."""
        with self._changed:
            self._changed.notify_all()

    def release(self) -> bool:
        """Every wait ends; True if no batch is under way."""
        with self._changed:
            self._released = True
            self._changed.notify_all()
            return self._inside == 0
