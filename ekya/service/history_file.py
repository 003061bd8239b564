"""Keeps on disk what a service knows of its cameras' past, so that a restart does not empty the page.

It is written when a window is over and at the end, so a process that is killed loses at most a window of it.
The journal would give the same, but reading a week of it takes minutes.
"""

import logging
import math
from bisect import bisect_right
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from ekya.core.units import StreamId
from ekya.results.storage.run_folder import RunFolder
from ekya.service.history import NO_PAST, Past
from ekya.service.status import CameraCounts, RetrainingRow, Series
from ekya.system.files import write_bytes_atomic

_LOG = logging.getLogger(__name__)

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
