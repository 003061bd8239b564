"""The service process's side of its supervisor: signs of life, its end, and the number of its restarts."""

import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from ekya.system.files import write_text_atomic
from ekya.system.processes import die_with

HEARTBEAT_FD = "EKYA_HEARTBEAT_FD"
"""Variable with the descriptor to which the service writes a byte as a sign of life."""

SUPERVISOR_PID = "EKYA_SUPERVISOR_PID"
"""Variable with the supervisor's pid."""

FULL_DISK = 74
"""Exit code of a service that a full disk has kept from starting."""

AGAIN = 75
"""Exit code of a service process that ended in order to be started again, with what was changed."""

_EVERY_S = 0.5


class Heartbeat:
    """Signs of life. The first one says that the service is ready; later ones must not fail to come.

    Made once in the service process, which must not hand the descriptor to others. Without a supervisor calls
    do nothing.
    """

    def __init__(self) -> None:
        # Taken out: what this process starts inherits the environment.
        descriptor = os.environ.pop(HEARTBEAT_FD, None)
        self._descriptor = None if descriptor is None else int(descriptor)
        self._beaten_s = float("-inf")
        if self._descriptor is not None:
            os.set_inheritable(self._descriptor, False)

    def __call__(self) -> None:
        """Gives a sign of life. Never waits; costs a look at the clock if the last one is fresh."""
        now_s = time.monotonic()
        if self._descriptor is not None and now_s - self._beaten_s >= _EVERY_S:
            self._beaten_s = now_s
            # A supervisor that is stopped reads nothing, and one that is dead neither.
            with suppress(BlockingIOError, BrokenPipeError):
                os.write(self._descriptor, b".")


def die_with_parent() -> None:
    """Has the kernel send SIGTERM to this process when its supervisor dies; nothing without a supervisor.

    Call it first of all in the service process, from any thread.
    """
    supervisor = os.environ.pop(SUPERVISOR_PID, None)
    if supervisor is not None:
        die_with(int(supervisor))


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
