"""Processes identified by PID and start time, so that a reused PID is not mistaken for the old process."""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_STATE, _STARTED = 0, 19
"""Indices of fields in ``/proc/PID/stat``, counted after the process name."""


@dataclass(frozen=True, slots=True)
class Process:
    """Snapshot of a process that was alive.

    Attributes:
        pid: process number, which can be reused after its end.
        started_ticks: start time in clock ticks since boot; identifies one process together with ``pid``.
        user: numeric user id.
        program: path of its executable; empty where it may not be read.
        arguments: command line; the first is the program's name.
    """

    pid: int
    started_ticks: int
    user: int
    program: str
    arguments: tuple[str, ...]

    def runs(self, name: str) -> bool:
        """Returns whether it runs an executable, or a script in an interpreter, of this name."""
        called = (self.program, *self.arguments[:2])
        return any(Path(one).name == name for one in called if one)


def find_process(pid: int) -> Process | None:
    """Returns the process that has this PID now; None without one, or for a zombie."""
    folder = _PROC / str(pid)
    try:
        stat = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
        status = (folder / "status").read_text(errors="replace")
        called = (folder / "cmdline").read_bytes()
    except OSError:
        return None
    if stat[_STATE] in ("Z", "X"):
        return None
    user = next(line.split()[1] for line in status.splitlines() if line.startswith("Uid:"))
    arguments = tuple(os.fsdecode(one) for one in called.split(b"\0") if one)
    return Process(pid, int(stat[_STARTED]), int(user), _program(folder), arguments)


def still_runs(process: Process) -> bool:
    """Returns whether this process, and not another with its PID, is alive."""
    now = find_process(process.pid)
    return now is not None and _same(now, process)


def send_signal(process: Process, number: signal.Signals) -> bool:
    """Sends a signal to this process, never to another with its PID; returns False where it is gone."""
    try:
        # A pidfd keeps referring to this process even if its PID is reused.
        held = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if not still_runs(process):
            return False
        signal.pidfd_send_signal(held, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(held)
    return True


def environment_of(process: Process) -> dict[str, str] | None:
    """Returns the process's initial environment; None where it may not be read or the process is gone."""
    try:
        pairs = (_PROC / str(process.pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return None
    return dict(os.fsdecode(one).split("=", 1) for one in pairs if b"=" in one)


def own_processes() -> Iterator[Process]:
    """Yields all processes of the current user."""
    for folder in _PROC.iterdir():
        if folder.name.isdigit():
            process = find_process(int(folder.name))
            if process is not None and process.user == os.getuid():
                yield process


def _same(one: Process, other: Process) -> bool:
    return (one.pid, one.started_ticks, one.user) == (other.pid, other.started_ticks, other.user)


def _program(folder: Path) -> str:
    try:
        return str((folder / "exe").readlink())
    except OSError:
        return ""
