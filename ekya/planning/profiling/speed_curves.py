"""Speed curves from measured rates: the speed of a job at a share."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from ekya.core.speed import CoRun, KindSpeeds, Pace, SpeedCurve
from ekya.core.units import FULL_GPU_MILLI

TRUSTED_EPOCHS = 5.0
"""Weight of a measured point, in epochs of jobs; epochs count less, since they ran beside other load."""

_LEAST_EPOCH_S = 1e-6
"""Resolution of run times: one microsecond."""


def curve_through(rates: Mapping[int, float]) -> SpeedCurve:
    """Returns the non-decreasing curve nearest to some rates, as parts of the one at a whole GPU.

    Rates are noisy: at 800 one may come out above that at 1000. Falling parts are averaged (isotonic
    regression).

    Args:
        rates: by share in thousandths, above 0, one of them 1000; work a second in any unit.

    Raises:
        ValueError: there is no rate above 0 at a whole GPU.
    """
    if rates.get(FULL_GPU_MILLI, 0.0) <= 0.0:
        raise ValueError("a speed curve needs a rate above 0 at a whole GPU")
    shares = sorted(share for share in rates if 0 < share <= FULL_GPU_MILLI)
    rising = isotonic_regression(np.array([rates[share] for share in shares])).x
    speeds = np.minimum(rising / rising[-1], 1.0)
    points = ((share, float(speed)) for share, speed in zip(shares, speeds, strict=True))
    return SpeedCurve(((0, 0.0), *points))


def joint_throughput(rates: tuple[float, ...], full_rate: float) -> CoRun:
    """Returns the joint throughput of jobs, from the rate of each and that of one alone at a whole GPU."""
    return CoRun(len(rates), sum(rates) / full_rate)


def among_others(measured: KindSpeeds) -> SpeedCurve:
    """Returns the speed of a job at a share while others use the rest of its GPU: the curve to plan with.

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
        parts[share_milli] = each / max(alone.speed_at(share_milli), each)
    known = sorted(parts)
    shares = sorted({share for share, _ in alone.points if share > 0} | set(known))
    part = np.interp(shares, known, [parts[share] for share in known])
    reached = part * np.array([alone.speed_at(share) for share in shares])
    # Falls due to noise are cut, not averaged: averaging could promise too much.
    return _never_falling(shares, reached)


def refine_curve(curve: SpeedCurve, paces: Iterable[Pace]) -> SpeedCurve:
    """Returns the curve after a correction by the measured epochs of jobs.

    A job's epochs are the same work, so where its share changed between two of them, the ratio of their
    times is that of the speeds at both shares, for any job. The logarithms of the curve's speeds are moved
    as little as these ratios allow (least squares, with ``TRUSTED_EPOCHS``); a whole GPU stays at 1. A job
    whose share never changed gives no information, and a curve without measured points, a straight line,
    stays one.

    Args:
        curve: as it was.
        paces: of all jobs, in any order.
    """
    shares = [share for share, _ in curve.points if share > 0]
    before = np.array([speed for share, speed in curve.points if share > 0])
    ratios = list(_ratios(paces))
    # With a whole GPU alone there is no unknown, and a speed of 0 has no logarithm.
    if not ratios or len(shares) == 1 or before[0] <= 0.0:
        return curve
    prior = math.sqrt(TRUSTED_EPOCHS) * np.eye(len(shares) - 1, len(shares))
    rows, wanted = [*prior], [*(prior @ np.log(before))]
    for slow, fast, ratio, epochs in ratios:
        (slow_row, slow_offset), (fast_row, fast_offset) = _log_speed(curve, slow), _log_speed(curve, fast)
        weight = math.sqrt(epochs)
        rows.append(weight * (slow_row - fast_row))
        wanted.append(weight * (math.log(ratio) - slow_offset + fast_offset))
    # The speed at a whole GPU is not an unknown: its logarithm is 0.
    moved, *_ = np.linalg.lstsq(np.array(rows)[:, :-1], np.array(wanted), rcond=None)
    return _never_falling(shares, np.append(np.exp(moved), 1.0))


def _ratios(paces: Iterable[Pace]) -> Iterator[tuple[int, int, float, int]]:
    """Yields, for neighbouring shares of one job, both shares, the speed ratio and its number of epochs.

    The ratio is the speed at the smaller share as a part of that at the larger.
    """
    jobs: dict[int, dict[int, list[float]]] = {}
    for pace in paces:
        if pace.share_milli > 0 and pace.epoch_s >= _LEAST_EPOCH_S:
            share_milli = min(pace.share_milli, FULL_GPU_MILLI)
            jobs.setdefault(pace.job, {}).setdefault(share_milli, []).append(pace.epoch_s)
    for _, epochs_s in sorted(jobs.items()):
        for slow, fast in pairwise(sorted(epochs_s)):
            ratio = median(epochs_s[fast]) / median(epochs_s[slow])
            yield slow, fast, ratio, min(len(epochs_s[slow]), len(epochs_s[fast]))


def _log_speed(curve: SpeedCurve, share_milli: int) -> tuple[NDArray[np.float64], float]:
    """Returns the logarithm of the speed at a share, as weights of those at the curve's points, and offset.

    Between two points speeds lie on a straight line, and their logarithms do not: the weights are the
    derivatives at the current curve, so that a ratio that the curve predicts exactly does not move it.
    """
    (_, *shares), speeds = zip(*curve.points, strict=True)
    row = np.zeros(len(shares))
    right = next(at for at, share in enumerate(shares) if share >= share_milli)
    before = shares[right - 1] if right else 0
    part = (share_milli - before) / (shares[right] - before)
    speed = curve.speed_at(share_milli)
    row[right] = part * speeds[right + 1] / speed
    if right:
        row[right - 1] = (1.0 - part) * speeds[right] / speed
    return row, math.log(speed) - float(row @ np.log(speeds[1:]))


def _never_falling(shares: Sequence[int], speeds: NDArray[np.float64]) -> SpeedCurve:
    """Returns a non-decreasing curve at or below these speeds, of which the last is 1."""
    rising = np.minimum.accumulate(speeds[::-1])[::-1]
    points = ((share, float(speed)) for share, speed in zip(shares, rising, strict=True))
    return SpeedCurve(((0, 0.0), *points))
