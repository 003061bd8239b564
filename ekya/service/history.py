"""History of a camera's accuracy and shares, in a bounded amount of memory."""

import math

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


class CameraHistory:
    """Two rings of points of one camera: one of the last hour, and one of means for a week."""

    def __init__(self) -> None:
        self._fine, self._coarse = _Ring(FINE_POINTS), _Ring(COARSE_POINTS)
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
        unix_s, accuracy, inference, retraining = np.concatenate((coarse, fine)).T.tolist()
        return Series(
            tuple(unix_s),
            tuple(None if math.isnan(one) else one for one in accuracy),
            tuple(inference),
            tuple(retraining),
        )


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
