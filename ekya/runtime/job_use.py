"""GPU time that a job has used, and its equivalent on a whole GPU."""

import threading

from ekya.core.speed import SpeedCurve
from ekya.core.units import US_PER_S
from ekya.gpu.protocol import Resized, ShareHandle


class JobUse:
    """Tracks a job's GPU use. Thread-safe.

    Nothing else may call the handle's ``measured``, which counts from one call to the next. Call ``count``
    after each batch: used time is converted at the share that the job holds then.
    """

    def __init__(self, handle: ShareHandle, speed: SpeedCurve, share_milli: int) -> None:
        """Starts at zero.

        Args:
            handle: of the job.
            speed: speed curve of the job over its share.
            share_milli: initial share of the job.
        """
        self._handle = handle
        self._speed = speed
        self._share_milli = share_milli
        self._lock = threading.Lock()
        self._worth_us = 0.0
        self._untold_us = 0

    def holds(self, resized: Resized | None) -> None:
        """Sets the job's share; None where the order was overtaken.

        Share 0 leaves it unchanged: the batch that a pause has caught up with still counts at its share.
        """
        if resized is not None and resized.share_milli:
            self._share_milli = resized.share_milli

    def count(self) -> None:
        """Counts what was used since the last call, at the current share."""
        with self._lock:
            used_us = self._handle.measured().used_us
            self._worth_us += self._speed.worth(used_us, self._share_milli)
            self._untold_us += used_us

    def worth_s(self) -> float:
        """Returns the seconds that a whole GPU would have needed for everything so far."""
        self.count()
        with self._lock:
            return self._worth_us / US_PER_S

    def untold_us(self) -> int:
        """Returns the GPU time used since this was last called."""
        self.count()
        with self._lock:
            untold_us, self._untold_us = self._untold_us, 0
        return untold_us
