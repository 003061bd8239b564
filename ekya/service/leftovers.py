"""Removes what a dead service leaves behind: processes (Ray's, its actors', decoders) and Ray's files.

Processes are found in two ways. Those whose parents died have become children of the supervisor, if it lived
then. All others, such as those of a supervisor that was killed itself, have the service's folder in their
environment, which processes inherit.
"""

import hashlib
import logging
import os
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from ekya.core.errors import UserError
from ekya.system.files import user_errors
from ekya.system.processes import environment_of, own_processes, send_signal, still_runs

_LOG = logging.getLogger(__name__)

FOLDER = "EKYA_SERVICE_FOLDER"
"""Variable of all processes of a service: its folder."""

_LOOK_S = 0.05
_UNKILLABLE_S = 10.0
"""A process that waits for a broken device cannot be killed; the service is started again without its end."""


def end_leftovers(folder: Path, grace_s: float, reap: Callable[[], object]) -> int:
    """Ends all processes of a service but this one and those above it, and returns how many there were.

    Args:
        folder: of the service.
        grace_s: between SIGTERM and SIGKILL.
        reap: takes the exit codes of children, without waiting.
    """
    left = _left(folder)
    found = len(left)
    for process in left:
        _signal(process, signal.SIGTERM)
    began_s = time.monotonic()
    while left and time.monotonic() < began_s + grace_s + _UNKILLABLE_S:
        time.sleep(_LOOK_S)
        reap()
        left = [process for process in left if still_runs(process)]
        if not left or time.monotonic() > began_s + grace_s:
            left = _left(folder)  # again: they may have started others
            for process in left:
                _signal(process, signal.SIGKILL)
    if left:
        _LOG.warning("%d processes of the service cannot be killed", len(left))
    return found


def ray_folder(folder: Path, root: Path | None = None) -> Path:
    """Makes and returns a folder for the files of a service's Ray, which is its alone.

    It is the same at each start, so what a killed supervisor left is found. Its path is short, since it holds
    sockets, whose paths have at most 107 bytes.

    Args:
        folder: of the service.
        root: where it is made; None for where Ray would make its own.

    Raises:
        UserError: it cannot be made, or belongs to another user.
    """
    name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:8]
    path = (root or Path(os.environ.get("RAY_TMPDIR", "/tmp"))) / f"ekya-{os.getuid()}-{name}"
    with user_errors(path):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    # In /tmp anyone may have made this name before: Ray's sockets must not lie in another's folder.
    if path.is_symlink() or path.stat().st_uid != os.getuid():
        raise UserError(f"{path}: belongs to another user; remove it, or set RAY_TMPDIR to another folder")
    return path


def remove_ray_folder(path: Path) -> None:
    """Removes what Ray left in the folder of ``ray_folder``, and the folder."""
    shutil.rmtree(path, ignore_errors=True)


def _left(folder: Path) -> list[psutil.Process]:
    here = psutil.Process()
    above = {here.pid, *(process.pid for process in here.parents())}
    found = {process.pid: process for process in here.children(recursive=True) if still_runs(process)}
    name = str(folder.resolve())
    for process in own_processes():
        if process.pid not in above and environment_of(process).get(FOLDER) == name:
            found[process.pid] = process
    return list(found.values())


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    with suppress(psutil.AccessDenied):
        send_signal(process, number)
