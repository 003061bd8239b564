"""Work on virtual time: so many GPU-seconds, done at the speed of whatever share it has just now."""

from ekya.core.speed import SpeedCurve
from ekya.core.units import US_PER_S


class ShareWork:
    """One step of work after the other.

    Args:
        speed: at a share.
        now_us: when the first step begins.
        share_milli: of the first step, until it is changed.
        gpu_s: of the first step.
    """

    def __init__(self, speed: SpeedCurve, now_us: int, share_milli: int, gpu_s: float) -> None:
        self._speed = speed
        self._since_us = now_us
        self._share_milli = share_milli
        self._left_gpu_s = gpu_s
        self._used_gpu_s = 0.0

    @property
    def due_us(self) -> int | None:
        """When the step in progress ends; None while the share is 0."""
        speed = self._speed.speed(self._share_milli)
        if speed == 0.0:
            return None
        return self._since_us + max(round(self._left_gpu_s / speed * US_PER_S), 1)

    def resize(self, share_milli: int, now_us: int) -> None:
        """Another share from ``now_us`` on; what is done of the step stays done."""
        self._advance(now_us)
        self._share_milli = share_milli

    def delay(self, delay_us: int) -> None:
        """Stands still for a while, as when a checkpoint is taken."""
        self._since_us += delay_us

    def next_step(self, gpu_s: float, now_us: int) -> None:
        """The step in progress is over; the next one begins."""
        self._advance(now_us)
        self._left_gpu_s = gpu_s

    def used_gpu_s(self, now_us: int) -> float:
        """GPU-seconds spent since this was last asked."""
        self._advance(now_us)
        used, self._used_gpu_s = self._used_gpu_s, 0.0
        return used

    def _advance(self, now_us: int) -> None:
        passed_us = max(now_us - self._since_us, 0)
        worked = min(self._left_gpu_s, passed_us / US_PER_S * self._speed.speed(self._share_milli))
        self._left_gpu_s -= worked
        self._used_gpu_s += worked
        self._since_us = max(self._since_us, now_us)
