"""Speed of a job as a function of its share of a GPU."""

import math
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise

from ekya.core.units import FULL_GPU_MILLI


@dataclass(frozen=True, slots=True)
class SpeedCurve:
    """Relative speed of a job at a share: measured, non-decreasing, 1.0 at a full GPU that it may use.

    Attributes:
        points: (share_milli, speed) with rising shares, from (0, 0.0) to (1000, 1.0), or less where its
            process is limited to a part of the GPU; interpolated linearly.
    """

    points: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        shares = [share for share, _ in self.points]
        speeds = [speed for _, speed in self.points]
        ends_full = shares[-1:] == [FULL_GPU_MILLI] and 0.0 < speeds[-1] <= 1.0
        if len(self.points) < 2 or self.points[0] != (0, 0.0) or not ends_full:
            raise ValueError("a speed curve runs from (0, 0.0) to (1000, 1.0)")
        if any(b <= a for a, b in pairwise(shares)):
            raise ValueError("the shares of a speed curve must rise")
        if any(b < a for a, b in pairwise(speeds)):
            raise ValueError("the speeds of a speed curve must not fall")

    def speed_at(self, share_milli: int) -> float:
        """Returns the relative speed in [0, 1]; a job cannot use more than one GPU."""
        if share_milli <= 0:
            return 0.0
        if share_milli >= FULL_GPU_MILLI:
            return self.points[-1][1]
        right = bisect_right(self.points, share_milli, key=lambda point: point[0])
        (share_a, speed_a), (share_b, speed_b) = self.points[right - 1], self.points[right]
        return speed_a + (speed_b - speed_a) * (share_milli - share_a) / (share_b - share_a)

    def up_to(self, cap_milli: int) -> "SpeedCurve":
        """Returns the curve of a job whose process is limited to a part of the GPU.

        For a smaller share it waits between batches, so its speed is in proportion to the share.
        """
        if cap_milli >= FULL_GPU_MILLI:
            return self
        most = self.speed_at(cap_milli)
        return SpeedCurve(((0, 0.0), (cap_milli, most), (FULL_GPU_MILLI, most)))

    def linear_milli(self, share_milli: int) -> float:
        """Returns the share that would give this speed if speed were proportional to share.

        Above a whole GPU, and for a linear curve everywhere, this is the share itself: see ``share_for``.
        """
        if not 0 < share_milli < FULL_GPU_MILLI:
            return float(max(share_milli, 0))
        right = bisect_right(self.points, share_milli, key=lambda point: point[0])
        (share_a, speed_a), (share_b, speed_b) = self.points[right - 1], self.points[right]
        from_milli, to_milli = FULL_GPU_MILLI * speed_a, FULL_GPU_MILLI * speed_b
        return from_milli + (to_milli - from_milli) * (share_milli - share_a) / (share_b - share_a)

    def share_for(self, speed: float) -> int:
        """Returns the smallest share in thousandths at which a job reaches a speed.

        No share reaches a speed above 1; the result is then in proportion to the speed, above 1000.
        """
        if speed <= 0.0:
            return 0
        if speed > 1.0:
            return math.ceil(speed * FULL_GPU_MILLI)
        for (share_a, speed_a), (share_b, speed_b) in pairwise(self.points):
            if speed <= speed_b:
                part = (speed - speed_a) / (speed_b - speed_a) if speed_b > speed_a else 1.0
                # Rounds first, so that a rounding error does not cost another thousandth.
                return math.ceil(round(share_a + (share_b - share_a) * part, 6))
        return FULL_GPU_MILLI

    def speed_needed(self, share_milli: int) -> float:
        """Returns the speed for which ``share_for`` gives this share; above 1 where no GPU is enough."""
        return self.speed_at(share_milli) if share_milli <= FULL_GPU_MILLI else share_milli / FULL_GPU_MILLI

    def whole_gpu_time(self, used: float, share_milli: int) -> float:
        """Converts GPU time used at a share to the time that a whole GPU would need, in the same unit.

        For example, a tenth of a GPU that runs at 0.36 of full speed uses one GPU-second in ten seconds,
        and does what a whole GPU does in 3.6.
        """
        if share_milli <= 0:
            return 0.0
        return used * self.speed_at(share_milli) * FULL_GPU_MILLI / min(share_milli, FULL_GPU_MILLI)


LINEAR = SpeedCurve(((0, 0.0), (FULL_GPU_MILLI, 1.0)))
"""Curve of thread time on a CPU core: half the share, half the speed."""


@dataclass(frozen=True, slots=True)
class CoRun:
    """Throughput of concurrent jobs of one kind on one GPU, each at an equal part of it.

    Attributes:
        jobs: number of jobs.
        throughput: total throughput, relative to one job alone at a whole GPU; an upper bound for
            concurrent jobs.
    """

    jobs: int
    throughput: float


@dataclass(frozen=True, slots=True)
class KindSpeeds:
    """Speeds of one kind of job on a device: alone, and with concurrent jobs."""

    alone: SpeedCurve
    together: tuple[CoRun, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelSpeeds:
    """Speeds of an edge model's retraining and inference on a device.

    Attributes:
        training, inference: measured speeds.
        refined: curve of a retraining among other jobs, refined by jobs in past runs; None before any.
    """

    training: KindSpeeds
    inference: KindSpeeds
    refined: SpeedCurve | None = None


@dataclass(frozen=True, slots=True)
class Pace:
    """Duration of a retraining's epoch at a constant share.

    Attributes:
        job: number of the retraining; all epochs of one job are the same work.
    """

    job: int
    share_milli: int
    epoch_s: float
