"""From measured rates to what a share is worth to a job."""

from collections.abc import Mapping

import numpy as np
from scipy.optimize import isotonic_regression

from ekya.core.speed import CoRun, KindSpeeds, SpeedCurve
from ekya.core.units import FULL_GPU_MILLI


def curve_through(rates: Mapping[int, float]) -> SpeedCurve:
    """The non-decreasing curve nearest to some rates, as parts of the one at a whole GPU.

    Rates are noisy: at 800 one may come out above that at 1000. What falls is averaged (isotonic regression).

    Args:
        rates: by share in thousandths, above 0, one of them 1000; work a second in any unit.

    Raises:
        ValueError: nothing was measured at a whole GPU, or nothing was done there.
    """
    if rates.get(FULL_GPU_MILLI, 0.0) <= 0.0:
        raise ValueError("a speed curve needs a rate above 0 at a whole GPU")
    shares = sorted(share for share in rates if 0 < share <= FULL_GPU_MILLI)
    rising = isotonic_regression(np.array([rates[share] for share in shares])).x
    speeds = np.minimum(rising / rising[-1], 1.0)
    points = ((share, float(speed)) for share, speed in zip(shares, speeds, strict=True))
    return SpeedCurve(((0, 0.0), *points))


def throughput(rates: tuple[float, ...], full_rate: float) -> CoRun:
    """What jobs did together, from the rate of each and that of one alone at a whole GPU."""
    return CoRun(len(rates), sum(rates) / full_rate)


def among_others(measured: KindSpeeds) -> SpeedCurve:
    """What a share is worth to a job while others have the rest of its GPU: the curve to plan with.

    Alone a tenth of a GPU may run at a third of full speed, but ten tenths do not make three GPUs. Where n
    jobs at 1/n each reach T together, one of them runs at T/n, a part of what the share gives alone; between
    the shares at which that was measured the part is interpolated, and below the smallest it stays. So equal
    shares of a GPU are never planned to reach more together than was measured, nor any share more than
    alone.
    """
    alone = measured.alone
    parts = {FULL_GPU_MILLI: 1.0}
    for together in measured.together:
        share_milli = FULL_GPU_MILLI // together.jobs
        each = together.throughput / together.jobs
        parts[share_milli] = each / max(alone.speed(share_milli), each)
    known = sorted(parts)
    shares = sorted({share for share, _ in alone.points if share > 0} | set(known))
    part = np.interp(shares, known, [parts[share] for share in known])
    reached = part * np.array([alone.speed(share) for share in shares])
    # What noise makes fall towards more is cut, not averaged: that could only promise too much.
    rising = np.minimum.accumulate(reached[::-1])[::-1]
    points = ((share, float(speed)) for share, speed in zip(shares, rising, strict=True))
    return SpeedCurve(((0, 0.0), *points))
