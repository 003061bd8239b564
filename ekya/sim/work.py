"""Work on virtual time: GPU-seconds that are done at the speed of the current share."""

from ekya.core.speed import SpeedCurve
from ekya.core.units import US_PER_S


class ShareWork:
    """Work in consecutive steps.

    Args:
        speed: at a share.
        now_us: start of the first step.
        share_milli: share of the first step, until it is changed.
        gpu_s: GPU-seconds of the first step.
    """

    def __init__(self, speed: SpeedCurve, now_us: int, share_milli: int, gpu_s: float) -> None:
        self._speed = speed
        self._since_us = now_us
        self._share_milli = share_milli
        self._left_gpu_s = gpu_s
        self._used_gpu_s = 0.0

    @property
    def due_us(self) -> int | None:
        """End of the current step; None while the share is 0."""
        speed = self._speed.speed(self._share_milli)
        if speed == 0.0:
            return None
        return self._since_us + max(round(self._left_gpu_s / speed * US_PER_S), 1)

    def resize(self, share_milli: int, now_us: int) -> None:
        """Sets the share from ``now_us`` on; the finished part of the step stays."""
        self._advance(now_us)
        self._share_milli = share_milli

    def delay(self, delay_us: int) -> None:
        """Pauses the work, for example while a checkpoint is taken."""
        self._since_us += delay_us

    def next_step(self, gpu_s: float, now_us: int) -> None:
        """Ends the current step and begins the next one."""
        self._advance(now_us)
        self._left_gpu_s = gpu_s

    def used_gpu_s(self, now_us: int) -> float:
        """Returns the GPU-seconds spent since the last call."""
        self._advance(now_us)
        used, self._used_gpu_s = self._used_gpu_s, 0.0
        return used

    def _advance(self, now_us: int) -> None:
        passed_us = max(now_us - self._since_us, 0)
        worked = min(self._left_gpu_s, passed_us / US_PER_S * self._speed.speed(self._share_milli))
        self._left_gpu_s -= worked
        self._used_gpu_s += worked
        self._since_us = max(self._since_us, now_us)
