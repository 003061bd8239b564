"""Processes as the kernel knows them, so that none is taken for another that had its number before."""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_STATE, _STARTED = 0, 19
"""Places in ``/proc/PID/stat``, counted behind the name."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process that lived when it was looked at.

    Attributes:
        pid: its number, which another process gets after its end.
        started_ticks: when it began, in clock ticks since the machine started. With the number it
            names one process.
        user: number of the user that it runs as.
        program: path of its executable; empty where the kernel does not tell us.
        arguments: with which it was called; the first is its own name.
    """

    pid: int
    started_ticks: int
    user: int
    program: str
    arguments: tuple[str, ...]

    def runs(self, name: str) -> bool:
        """Whether it runs a program of this name: an executable, or a script, which an interpreter runs."""
        called = (self.program, *self.arguments[:2])
        return any(Path(one).name == name for one in called if one)


def look_at(pid: int) -> Process | None:
    """The process that has this number now; None where there is none, or only what is left of one."""
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
    """Whether this very process lives."""
    now = look_at(process.pid)
    return now is not None and _same(now, process)


def send_signal(process: Process, number: signal.Signals) -> bool:
    """Sends a signal to this very process, and to no other; False where it is gone."""
    try:
        # What is held here stays that process, whatever happens to its number meanwhile.
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
    """The environment that it was started with; None where we may not see it or it is gone."""
    try:
        pairs = (_PROC / str(process.pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return None
    return dict(os.fsdecode(one).split("=", 1) for one in pairs if b"=" in one)


def own_processes() -> Iterator[Process]:
    """All processes of the current user."""
    for folder in _PROC.iterdir():
        if folder.name.isdigit():
            process = look_at(int(folder.name))
            if process is not None and process.user == os.getuid():
                yield process


def _same(one: Process, other: Process) -> bool:
    return (one.pid, one.started_ticks, one.user) == (other.pid, other.started_ticks, other.user)


def _program(folder: Path) -> str:
    try:
        return str((folder / "exe").readlink())
    except OSError:
        return ""
