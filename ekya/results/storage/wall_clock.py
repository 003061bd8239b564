"""Wall-clock times of a service's run times, from the moments at which it was started."""

import json
from bisect import bisect_right
from dataclasses import dataclass

from ekya.core.errors import UserError
from ekya.results.storage.run_folder import RunFolder
from ekya.system.files import user_errors, write_text_atomic

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
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    lines.append(json.dumps({"run_us": run_us, "unix_us": unix_us}))
    write_text_atomic(path, "".join(f"{line}\n" for line in lines[-_MOST_STARTS:]))


@dataclass(frozen=True, slots=True)
class WallClock:
    """Converts run times to wall-clock times.

    Attributes:
        starts: run time and wall-clock time of each start, at least one, in rising order of run time.
    """

    starts: tuple[tuple[int, int], ...]

    @staticmethod
    def read(folder: RunFolder) -> "WallClock":
        """Returns the clock of a service's folder.

        Raises:
            UserError: there is no ``starts.jsonl``, or it is damaged.
        """
        path = folder.starts
        try:
            with user_errors(path):
                lines = path.read_text(encoding="utf-8").splitlines()
            starts: list[tuple[int, int]] = []
            for line in lines:
                start = json.loads(line)
                # One that goes back in run time, after a loss, replaces those that it overtakes.
                while starts and starts[-1][0] >= start["run_us"]:
                    starts.pop()
                starts.append((start["run_us"], start["unix_us"]))
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path}: a line is damaged ({error}); remove that line") from error
        if not starts:
            raise UserError(f"{path}: the file is empty; start the service again")
        return WallClock(tuple(starts))

    def unix_us(self, run_us: int) -> int:
        """Returns the wall-clock time of a run time, both in microseconds."""
        place = bisect_right(self.starts, run_us, key=lambda start: start[0])
        since_us, unix_us = self.starts[max(place - 1, 0)]
        return unix_us + run_us - since_us
