"""Processes of this machine, by PID and start time, so that no reused PID is mistaken; and what ties them."""

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def find_process(pid: int) -> psutil.Process | None:
    """Returns the process that has this PID now; None without one, or for a zombie."""
    try:
        process = psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None
    return process if still_runs(process) else None


def still_runs(process: psutil.Process) -> bool:
    """Returns whether this process, and not another with its PID, is alive."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def started_s(process: psutil.Process) -> float:
    """Returns its start in seconds since boot, which, unlike a time of day, never changes afterwards."""
    # Rounded to ticks: a difference of large floats is inexact, and identities are compared for equality.
    return round(float(process.create_time() - psutil.boot_time()), 2)


def is_own(process: psutil.Process) -> bool:
    """Returns whether it is the current user's; False for one that is gone."""
    with suppress(psutil.Error):
        return bool(process.uids().real == os.getuid())
    return False


def runs_executable(process: psutil.Process, name: str) -> bool:
    """Returns whether it runs an executable, or a script in an interpreter, of this name."""
    called = arguments_of(process)[:2]
    with suppress(psutil.Error):
        called.append(process.exe())
    return any(Path(one).name == name for one in called)


def arguments_of(process: psutil.Process) -> list[str]:
    """Returns its command line, which begins with the program's name; empty if the process is gone."""
    with suppress(psutil.Error):
        return list(process.cmdline())
    return []


def environment_of(process: psutil.Process) -> dict[str, str]:
    """Returns its initial environment; empty where it may not be read or the process is gone."""
    with suppress(psutil.Error):
        return dict(process.environ())
    return {}


def own_processes() -> Iterator[psutil.Process]:
    """Yields all processes of the current user."""
    return (process for process in psutil.process_iter() if is_own(process) and still_runs(process))


def send_signal(process: psutil.Process, number: signal.Signals) -> bool:
    """Sends a signal to this process, not to another with its PID; returns False where it is gone."""
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return False
    return True


def adopt_orphans() -> None:
    """Makes this process the parent of every descendant whose own parent dies, which it must then reap.

    Raises:
        OSError: the kernel refuses.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with(parent_pid: int, number: signal.Signals = signal.SIGTERM) -> None:
    """Has the kernel send a signal to this process when its parent dies, also if it is dead already.

    Args:
        parent_pid: of the process that started this one.
        number: signal to be sent.

    Raises:
        OSError: the kernel refuses.
    """
    # Linux sends it when the parent's thread that started this process ends, even if others live on.
    _prctl(_PR_SET_PDEATHSIG, number)
    # The kernel sends nothing for a parent that died before the call.
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), number)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    # prctl is variadic and reads unsigned longs: an int would leave the upper half undefined.
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
