"""Wall-clock times of a service's run times, from the moments at which it was started."""

import json
import logging
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from ekya.core.errors import UserError
from ekya.results.storage.run_folder import RunFolder
from ekya.system.files import user_errors, write_bytes_atomic

_LOG = logging.getLogger(__name__)

_MOST_STARTS = 10_000
"""Older ones are forgotten, so that the file of a service that restarts again and again stays small."""


def record_start(folder: RunFolder, run_us: int, unix_us: int) -> None:
    """Appends a line to ``starts.jsonl``: from this run time on, time passes from this wall-clock time.

    Also for a host whose clock was set meanwhile.

    Args:
        folder: of the service.
        run_us: run time, in microseconds; later than that of every frame before the start.
        unix_us: wall-clock time, in microseconds since 1970.

    Raises:
        UserError: full disk, no permission and the like.
    """
    path = folder.starts
    with user_errors(path):
        lines = path.read_bytes().splitlines() if path.exists() else []
    lines.append(json.dumps({"run_us": run_us, "unix_us": unix_us}).encode())
    write_bytes_atomic(path, b"".join(line + b"\n" for line in lines[-_MOST_STARTS:]))


@dataclass(frozen=True, slots=True)
class WallClock:
    """Converts run times to wall-clock times.

    Attributes:
        starts: run time and wall-clock time of each start, at least one, in rising order of run time.
    """

    starts: tuple[tuple[int, int], ...]

    @staticmethod
    def from_folder(folder: RunFolder) -> "WallClock":
        """Returns the clock of a service's folder; the file is read only if it has changed since.

        Damaged lines are left out, and logged.

        Raises:
            UserError: there is no ``starts.jsonl``, or it has no start.
        """
        path = folder.starts
        with user_errors(path):
            stat = path.stat()
            return _read(path, stat.st_mtime_ns, stat.st_size)

    def unix_us(self, run_us: int) -> int:
        """Returns the wall-clock time of a run time, both in microseconds."""
        place = bisect_right(self.starts, run_us, key=lambda start: start[0])
        since_us, unix_us = self.starts[max(place - 1, 0)]
        return unix_us + run_us - since_us


@dataclass(frozen=True, slots=True)
class _Start:
    run_us: int
    unix_us: int


_START = TypeAdapter(_Start)


@lru_cache(maxsize=1)  # a process has one service
def _read(path: Path, _mtime_ns: int, _size: int) -> WallClock:
    """Returns the clock of a file, which is one that was changed at this time and has this size."""
    starts: list[tuple[int, int]] = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            start = _START.validate_json(line)
        except ValidationError:
            _LOG.warning("%s: line %d is damaged and is left out", path, number)
            continue
        # One that goes back in run time, after a loss, replaces those that it overtakes.
        while starts and starts[-1][0] >= start.run_us:
            starts.pop()
        starts.append((start.run_us, start.unix_us))
    if not starts:
        raise UserError(f"{path}: the file has no start; start the service again")
    return WallClock(tuple(starts))
