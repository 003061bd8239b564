"""Artificial load on a machine: processor and memory by stress-ng, as in the paper (§IV.B.1)."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil

from ekya.core.errors import UserError

_STARTS_S = 0.5
"""Time in which stress-ng has started or has failed."""

_ENDS_S = 10.0
"""Time in which it ends on SIGTERM; afterwards it is killed."""

_FILLS_S = 60.0
"""Time in which it has allocated its memory."""

_TAKEN = 0.8
"""Part of the requested memory that must be resident before a measurement begins."""


@dataclass(frozen=True, slots=True)
class StressPoint:
    """Artificial load on a machine.

    Attributes:
        cpu: of all cores, as a part of one.
        mem: of the machine's memory, as a part of one.
    """

    cpu: float = 0.0
    mem: float = 0.0

    def __post_init__(self) -> None:
        for name, part in (("cpu", self.cpu), ("mem", self.mem)):
            if not 0 <= part < 1:
                raise UserError(f"a stress of {part:g} on {name} is none: give a part of 1, such as 0.5")


def stress_ng() -> str:
    """Returns the path of stress-ng.

    Raises:
        UserError: it is not installed.
    """
    path = shutil.which("stress-ng")
    if path is None:
        raise UserError(
            "stress-ng is not installed; install Debian's package of that name: apt-get install stress-ng"
        )
    return path


@contextmanager
def stressed(point: StressPoint) -> Iterator[None]:
    """Puts this machine under stress for the duration of the block.

    Raises:
        UserError: stress-ng is not installed, or cannot do it.
    """
    words = _words(point)
    if not words:
        yield
        return
    path = stress_ng()
    process = subprocess.Popen(
        [path, "--quiet", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        time.sleep(_STARTS_S)
        if process.poll() is not None:
            said = " ".join((process.stderr.read() if process.stderr else "").split())
            raise UserError(f"stress-ng ended at once ({said or process.returncode}); give it less to do")
        _await_memory(process.pid, point.mem)
        yield
    finally:
        # On SIGTERM the leader of the process group ends its stressors.
        process.terminate()
        try:
            process.wait(_ENDS_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _await_memory(pid: int, part: float) -> None:
    """Waits until the stressors have allocated their memory.

    Raises:
        UserError: they do not within ``_FILLS_S``.
    """
    until_s, wanted = time.monotonic() + _FILLS_S, _TAKEN * part * psutil.virtual_memory().total
    while _resident_bytes(pid) < wanted:
        if time.monotonic() > until_s:
            raise UserError(
                f"stress-ng does not get {part:.0%} of the memory in {_FILLS_S:g} s; ask for less"
            )
        time.sleep(0.1)


def _resident_bytes(pid: int) -> int:
    """Returns the resident memory of a process and its descendants; 0 for one that has ended."""
    resident = 0
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                resident += one.memory_info().rss
    return resident


def _words(point: StressPoint) -> list[str]:
    words = []
    if point.cpu > 0:
        words += ["--cpu", "0", "--cpu-load", f"{round(100 * point.cpu)}"]
    if point.mem > 0:
        words += [
            "--vm",
            "1",
            "--vm-bytes",
            f"{round(point.mem * psutil.virtual_memory().total)}",
            "--vm-keep",
            "--vm-populate",
            "--vm-hang",
            "0",
        ]
    return words
