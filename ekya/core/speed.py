"""How fast a job runs at a share of a GPU (DESIGN: speed curve)."""

import math
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
        if len(self.points) < 2 or self.points[0] != (0, 0.0) or self.points[-1] != (FULL_GPU_MILLI, 1.0):
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

    def linear_milli(self, share_milli: int) -> float:
        """The share that would be as fast if half the share were half the speed.

        Above a whole GPU it is the share itself: see ``share_for``. Of a straight line it is so everywhere.
        """
        if not 0 < share_milli < FULL_GPU_MILLI:
            return float(max(share_milli, 0))
        right = bisect_right(self.points, share_milli, key=lambda point: point[0])
        (share_a, speed_a), (share_b, speed_b) = self.points[right - 1], self.points[right]
        from_milli, to_milli = FULL_GPU_MILLI * speed_a, FULL_GPU_MILLI * speed_b
        return from_milli + (to_milli - from_milli) * (share_milli - share_a) / (share_b - share_a)

    def share_for(self, speed: float) -> int:
        """The smallest share in thousandths at which a job reaches a speed.

        A speed above 1 no share of a GPU reaches; what is asked for then is in proportion, above 1000.
        """
        if speed <= 0.0:
            return 0
        if speed > 1.0:
            return math.ceil(speed * FULL_GPU_MILLI)
        for (share_a, speed_a), (share_b, speed_b) in pairwise(self.points):
            if speed <= speed_b:
                part = (speed - speed_a) / (speed_b - speed_a) if speed_b > speed_a else 1.0
                # What is above a thousandth by a rounding error is no thousandth more.
                return math.ceil(round(share_a + (share_b - share_a) * part, 6))
        return FULL_GPU_MILLI

    def speed_needed(self, share_milli: int) -> float:
        """The speed that ``share_for`` answers with this share; above 1 where no GPU is enough."""
        return self.speed(share_milli) if share_milli <= FULL_GPU_MILLI else share_milli / FULL_GPU_MILLI

    def worth(self, used: float, share_milli: int) -> float:
        """What GPU time that was used at a share is worth in time at a whole GPU, in the same unit.

        A tenth of a GPU that runs at 0.36 of full speed does in ten seconds, of which it is said to have used
        one, what a whole GPU does in 3.6.
        """
        if share_milli <= 0:
            return 0.0
        return used * self.speed(share_milli) * FULL_GPU_MILLI / min(share_milli, FULL_GPU_MILLI)


LINEAR = SpeedCurve(((0, 0.0), (FULL_GPU_MILLI, 1.0)))
"""Thread time on a CPU core: half the share, half the speed."""


@dataclass(frozen=True, slots=True)
class CoRun:
    """What several jobs of a kind do on one GPU at the same time, each at an equal part of it.

    Attributes:
        jobs: how many.
        throughput: of all of them, as a part of that of one alone at a whole GPU; concurrent jobs cannot
            exceed it together.
    """

    jobs: int
    throughput: float


@dataclass(frozen=True, slots=True)
class KindSpeeds:
    """One kind of job on a device: alone, and beside others."""

    alone: SpeedCurve
    together: tuple[CoRun, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelSpeeds:
    """An edge model's retraining and inference on a device.

    Attributes:
        training, inference: as measured.
        refined: what a share is worth to a retraining among others, after what jobs did in runs; None
            before any did.
    """

    training: KindSpeeds
    inference: KindSpeeds
    refined: SpeedCurve | None = None


@dataclass(frozen=True, slots=True)
class Pace:
    """How long an epoch of a retraining took at a share that stayed the same meanwhile.

    Attributes:
        job: number of the retraining; epochs of one job are the same work.
    """

    job: int
    share_milli: int
    epoch_s: float
