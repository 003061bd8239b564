"""What a job has used of the GPU, and what that would have been of a whole one."""

import threading

from ekya.core.speed import SpeedCurve
from ekya.core.units import US_PER_S
from ekya.gpu.protocol import Resized, ShareHandle


class JobUse:
    """Asks a job's handle, and nobody else may: that counts from one question to the next.

    Any thread may call. ``count`` belongs behind each batch: what was used is worth what the share of the
    time made of it.
    """

    def __init__(self, handle: ShareHandle, speed: SpeedCurve, share_milli: int) -> None:
        """Nothing is used yet.

        Args:
            handle: the job's.
            speed: what a share is worth to it.
            share_milli: at which it is to work.
        """
        self._handle = handle
        self._speed = speed
        self._share_milli = share_milli
        self._lock = threading.Lock()
        self._worth_us = 0.0
        self._untold_us = 0

    def holds(self, resized: Resized | None) -> None:
        """The job has another share; None where that was overtaken.

        At share 0 it is as before: the batch that a pause has caught up with still counts at its share.
        """
        if resized is not None and resized.share_milli:
            self._share_milli = resized.share_milli

    def count(self) -> None:
        """What was used since this was last called was used at the share of now."""
        with self._lock:
            used_us = self._handle.measured().used_us
            self._worth_us += self._speed.worth(used_us, self._share_milli)
            self._untold_us += used_us

    def worth_s(self) -> float:
        """Seconds that a whole GPU would have needed for everything so far."""
        self.count()
        with self._lock:
            return self._worth_us / US_PER_S

    def untold_us(self) -> int:
        """GPU time that was used since this was last asked."""
        self.count()
        with self._lock:
            untold_us, self._untold_us = self._untold_us, 0
        return untold_us
