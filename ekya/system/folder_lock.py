"""Lock of a run folder, which the kernel takes away when its holder dies."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ekya.core.errors import UserError
from ekya.system.files import user_errors

LOCK = "lock"
"""Name of the file in the folder. It holds the holder's pid, and stays when the lock is free."""

_TRIES, _PAUSE_S = 10, 0.05
"""``holder_of`` holds a lock for an instant, which is no reason to refuse another."""


@contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Holds an existing folder for this process; its children do not hold it.

    Raises:
        UserError: another process holds it, or the lock cannot be written.
    """
    path = folder / LOCK
    with user_errors(path):
        file = path.open("ab", buffering=0)
    with file:
        for last in (*[False] * (_TRIES - 1), True):
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if last:
                raise UserError(
                    f"{folder}: process {_pid_in(path) or 'of another host'} uses this folder; "
                    "stop it, or choose another name"
                )
            time.sleep(_PAUSE_S)
        with suppress(OSError):  # a full disk: the lock holds without the pid
            file.truncate(0)
            file.write(f"{os.getpid()}\n".encode())
        yield


def holder_of(folder: Path) -> int | None:
    """Returns the pid of the process that holds a folder; None if none does, or it cannot be read."""
    path = folder / LOCK
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _pid_in(path) or 0
    except OSError:
        pass
    return None


def _pid_in(path: Path) -> int | None:
    with suppress(OSError, ValueError):
        return int(path.read_text(encoding="utf-8"))
    return None
