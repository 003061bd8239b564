"""History of a camera's accuracy and shares, in a bounded amount of memory."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ekya.core.units import US_PER_S
from ekya.service.status import Series

FINE_US, FINE_POINTS = 10 * US_PER_S, 360
"""Distance and number of the newest points: an hour."""

COARSE_US, COARSE_POINTS = 300 * US_PER_S, 2016
"""The same of older ones: a week."""

Point = tuple[float, float, float, float]
"""Seconds since 1970, accuracy (NaN while unknown), share of inference, share of retraining."""

_Points = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Past:
    """What a history holds, to be kept on disk: the points of the last hour, and the means of all."""

    fine: Series
    coarse: Series


NO_PAST = Past(Series(), Series())


class CameraHistory:
    """Points of one camera in order of time: those of the last hour, and means for a week.

    Args:
        past: what an earlier process of the service kept.
    """

    def __init__(self, past: Past = NO_PAST) -> None:
        self._fine, self._coarse = _points(past.fine), _points(past.coarse)
        self._slot = self._coarse_slot = -1
        self._open: list[Point] = []

    def add(self, now_us: int, point: Point) -> None:
        """Adds what holds at a moment, unless there is a point of the same ten seconds of run time.

        Points that are not before it are dropped: the clock of the machine was set back since.
        """
        slot, coarse_slot = now_us // FINE_US, now_us // COARSE_US
        if slot == self._slot:
            return
        if coarse_slot != self._coarse_slot and self._open:
            self._coarse = np.concatenate((self._coarse, [_mean(self._open)]))[-COARSE_POINTS:]
            self._open.clear()
        self._slot, self._coarse_slot = slot, coarse_slot
        self._fine, self._coarse = _before(self._fine, point), _before(self._coarse, point)
        self._open = [one for one in self._open if one[0] < point[0]]
        self._open.append(point)
        self._fine = np.concatenate((self._fine, [point]))[-FINE_POINTS:]

    def series(self) -> Series:
        """Returns the means of the days before the last hour, and then its points."""
        fine, coarse = self._fine, self._coarse
        if len(fine):
            coarse = _before(coarse, fine[0])
        return _series(np.concatenate((coarse, fine)))

    def past(self) -> Past:
        """Returns what is kept; the mean of the last five minutes is one of as much of them as is over."""
        means = [_mean(self._open)] if self._open else []
        return Past(_series(self._fine), _series(np.concatenate((self._coarse, np.reshape(means, (-1, 4))))))


def _before(points: _Points, point: Point | npt.NDArray[np.float64]) -> _Points:
    return points[points[:, 0] < point[0]]


def _series(points: _Points) -> Series:
    unix_s, accuracy, inference, retraining = points.T.tolist()
    known = tuple(None if math.isnan(one) else one for one in accuracy)
    return Series(tuple(unix_s), known, tuple(inference), tuple(retraining))


def _points(series: Series) -> _Points:
    known = [math.nan if one is None else one for one in series.accuracy]
    return np.column_stack((series.unix_s, known, series.inference_milli, series.retraining_milli))


def _mean(points: list[Point]) -> Point:
    """Returns the mean point; its accuracy is of those where it is known."""
    unix_s, accuracies, inference, retraining = zip(*points, strict=True)
    known = [one for one in accuracies if not math.isnan(one)]
    accuracy = math.fsum(known) / len(known) if known else math.nan
    number = len(points)
    return (
        math.fsum(unix_s) / number,
        accuracy,
        math.fsum(inference) / number,
        math.fsum(retraining) / number,
    )
