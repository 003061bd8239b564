"""How fast a job runs at a share of a GPU (DESIGN: speed curve)."""

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise

from ekya.core.units import FULL_GPU_MILLI


@dataclass(frozen=True, slots=True)
class SpeedCurve:
    """Relative speed of a job at a share: measured, non-decreasing, 1.0 at a full GPU.

    Attributes:
        points: (share_milli, speed) with rising shares, from (0, 0.0) to (1000, 1.0); straight
            lines between them.
    """

    points: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        shares = [share for share, _ in self.points]
        speeds = [speed for _, speed in self.points]
        if self.points[0] != (0, 0.0) or self.points[-1] != (FULL_GPU_MILLI, 1.0):
            raise ValueError("a speed curve runs from (0, 0.0) to (1000, 1.0)")
        if any(b <= a for a, b in pairwise(shares)):
            raise ValueError("the shares of a speed curve must rise")
        if any(b < a for a, b in pairwise(speeds)):
            raise ValueError("the speeds of a speed curve must not fall")

    def speed(self, share_milli: int) -> float:
        """Relative speed in [0, 1]; a job cannot use more than one GPU."""
        if share_milli <= 0:
            return 0.0
        if share_milli >= FULL_GPU_MILLI:
            return 1.0
        right = bisect_right(self.points, share_milli, key=lambda point: point[0])
        (share_a, speed_a), (share_b, speed_b) = self.points[right - 1], self.points[right]
        return speed_a + (speed_b - speed_a) * (share_milli - share_a) / (share_b - share_a)


LINEAR = SpeedCurve(((0, 0.0), (FULL_GPU_MILLI, 1.0)))
"""Thread time on a CPU core: half the share, half the speed."""
