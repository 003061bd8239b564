"""History of a camera's accuracy and shares, in a bounded amount of memory."""

import math
from collections.abc import Iterator
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
    """Two rings of points of one camera: one of the last hour, and one of means for a week.

    Args:
        past: what an earlier process of the service kept.
    """

    def __init__(self, past: Past = NO_PAST) -> None:
        self._fine, self._coarse = _Ring(FINE_POINTS), _Ring(COARSE_POINTS)
        for ring, series in ((self._fine, past.fine), (self._coarse, past.coarse)):
            for point in _points(series):
                ring.append(point)
        self._slot = self._coarse_slot = -1
        self._open: list[Point] = []

    def add(self, now_us: int, point: Point) -> None:
        """Adds what holds at a moment, unless there is a point of the same ten seconds of run time."""
        slot, coarse_slot = now_us // FINE_US, now_us // COARSE_US
        if slot == self._slot:
            return
        if coarse_slot != self._coarse_slot and self._open:
            self._coarse.append(_mean(self._open))
            self._open.clear()
        self._slot, self._coarse_slot = slot, coarse_slot
        self._open.append(point)
        self._fine.append(point)

    def series(self) -> Series:
        """Returns the means of the days before the last hour, and then its points."""
        fine, coarse = self._fine.points(), self._coarse.points()
        if len(fine):
            coarse = coarse[coarse[:, 0] < fine[0, 0]]
        return _series(np.concatenate((coarse, fine)))

    def past(self) -> Past:
        """Returns what is kept; the mean of the last five minutes is one of as much of them as is over."""
        means = [_mean(self._open)] if self._open else []
        coarse = np.concatenate((self._coarse.points(), np.reshape(means, (-1, 4))))
        return Past(_series(self._fine.points()), _series(coarse))


class _Ring:
    """The last points, in an array of fixed size."""

    def __init__(self, size: int) -> None:
        self._points: _Points = np.empty((size, 4))
        self._added = 0

    def append(self, point: Point) -> None:
        self._points[self._added % len(self._points)] = point
        self._added += 1

    def points(self) -> _Points:
        """Returns a copy, in the order in which they were added."""
        size = len(self._points)
        if self._added <= size:
            return self._points[: self._added].copy()
        return np.roll(self._points, -(self._added % size), axis=0)


def _series(points: _Points) -> Series:
    unix_s, accuracy, inference, retraining = points.T.tolist()
    known = tuple(None if math.isnan(one) else one for one in accuracy)
    return Series(tuple(unix_s), known, tuple(inference), tuple(retraining))


def _points(series: Series) -> Iterator[Point]:
    known = (math.nan if one is None else one for one in series.accuracy)
    return zip(series.unix_s, known, series.inference_milli, series.retraining_milli, strict=True)


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
