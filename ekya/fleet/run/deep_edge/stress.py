"""Artificial load on a machine: processor and memory by stress-ng, as in the paper (§IV.B.1)."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ekya.core.errors import UserError
from ekya.fleet.run.deep_edge.states import MEMINFO, kilobytes

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
    until_s, wanted = time.monotonic() + _FILLS_S, _TAKEN * part * _memory_kb()
    while _resident_kb(pid) < wanted:
        if time.monotonic() > until_s:
            raise UserError(
                f"stress-ng does not get {part:.0%} of the memory in {_FILLS_S:g} s; ask for less"
            )
        time.sleep(0.1)


def _memory_kb() -> int:
    return kilobytes(MEMINFO.read_text(encoding="ascii"))["MemTotal"]


def _resident_kb(pid: int) -> int:
    """Returns the resident memory of a process and its descendants, in kB; 0 for one that has ended."""
    folder = Path(f"/proc/{pid}")
    try:
        own = kilobytes((folder / "status").read_text(encoding="utf-8")).get("VmRSS", 0)
        children = (folder / "task" / str(pid) / "children").read_text(encoding="ascii").split()
    except OSError:
        return 0
    return own + sum(_resident_kb(int(child)) for child in children)


def _words(point: StressPoint) -> list[str]:
    words = []
    if point.cpu > 0:
        words += ["--cpu", "0", "--cpu-load", f"{round(100 * point.cpu)}"]
    if point.mem > 0:
        words += [
            "--vm",
            "1",
            "--vm-bytes",
            f"{round(point.mem * _memory_kb())}k",
            "--vm-keep",
            "--vm-populate",
            "--vm-hang",
            "0",
        ]
    return words
