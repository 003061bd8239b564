"""History of a camera's accuracy and shares, in a bounded amount of memory, and on disk for a restart.

It is written when a window is over and at the end, so a process that is killed loses at most a window of it.
The journal would give the same, but reading a week of it takes minutes.
"""

import logging
import math
from bisect import bisect_right
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter, ValidationError

from ekya.core.units import US_PER_S, StreamId
from ekya.results.storage.run_folder import RunFolder
from ekya.service.status import CameraCounts, RetrainingRow, Series
from ekya.system.files import write_bytes_atomic

_LOG = logging.getLogger(__name__)

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

    def add_point(self, now_us: int, point: Point) -> None:
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


FORMAT = 1
"""Version of the format of the file; another one is not read."""

NOT_COUNTED = CameraCounts()


@dataclass(frozen=True, slots=True)
class CameraPast:
    """What is known of a camera's past.

    Attributes:
        history: of accuracy and shares.
        retrainings: the last that are over, in the order of their ends.
        counts: of all starts.
        labels_unix_s: when its newest labels came; None before the first.
    """

    history: Past = NO_PAST
    retrainings: tuple[RetrainingRow, ...] = ()
    counts: CameraCounts = NOT_COUNTED
    labels_unix_s: float | None = None


@dataclass(frozen=True, slots=True)
class _File:
    format: int
    cameras: Mapping[StreamId, CameraPast]


_FILE = TypeAdapter(_File)


def past_file(folder: RunFolder) -> Path:
    """Returns the path of the file in a service's folder."""
    return folder.path / "history.json"


def keep_past(folder: RunFolder, past: Mapping[StreamId, CameraPast]) -> None:
    """Writes the past of all cameras.

    Raises:
        UserError: full disk, no permission and the like.
    """
    write_bytes_atomic(past_file(folder), _FILE.dump_json(_File(FORMAT, past)))


def read_past(
    folder: RunFolder, streams: Collection[str], now_unix_s: float = math.inf
) -> dict[StreamId, CameraPast]:
    """Returns what is known of these cameras; nothing where no file can be read.

    Points after ``now_unix_s`` are left out: the clock of the machine was set back.
    """
    path = past_file(folder)
    try:
        kept = _FILE.validate_json(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValidationError) as error:
        _LOG.warning("%s: the page begins anew, since it cannot be read (%s)", path, error)
        return {}
    if kept.format != FORMAT:
        _LOG.warning(
            "%s: the page's curves, retrainings and counts begin anew, since it has another format",
            path,
        )
        return {}
    return {
        name: replace(
            past, history=Past(_until(past.history.fine, now_unix_s), _until(past.history.coarse, now_unix_s))
        )
        for name, past in kept.cameras.items()
        if name in streams
    }


def _until(series: Series, unix_s: float) -> Series:
    end = bisect_right(series.unix_s, unix_s)
    return Series(
        series.unix_s[:end],
        series.accuracy[:end],
        series.inference_milli[:end],
        series.retraining_milli[:end],
    )
