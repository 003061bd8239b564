"""Number of restarts of a service, which outlives its processes."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from ekya.system.files import write_text_atomic

RESTARTS = "restarts.json"


@dataclass(frozen=True, slots=True)
class Restarts:
    """Restarts of a service since its folder was made, not counting those that a user asked for.

    Attributes:
        count: their number.
        last_unix_s: time of the last one; None before the first.
        last_reason: why the service process had died.
    """

    count: int = 0
    last_unix_s: float | None = None
    last_reason: str = ""


def read_restarts(folder: Path) -> Restarts:
    """Returns the restarts of the service in this folder; none where the file is missing or damaged."""
    try:
        values = json.loads((folder / RESTARTS).read_text(encoding="utf-8"))
        return Restarts(int(values["count"]), values["last_unix_s"], str(values["last_reason"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Restarts()


def count_restart(folder: Path, unix_s: float, reason: str) -> Restarts:
    """Counts a restart and returns all.

    Raises:
        UserError: full disk, no permission and the like.
    """
    restarts = Restarts(read_restarts(folder).count + 1, unix_s, reason)
    write_text_atomic(folder / RESTARTS, json.dumps(asdict(restarts)) + "\n")
    return restarts
