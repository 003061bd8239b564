"""Runs the checks of `make gpu-check` in separate processes and collects their findings."""

import faulthandler
import importlib
import json
import math
import os
import queue
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from itertools import dropwhile, islice, takewhile
from pathlib import Path
from typing import IO, Any

from gpu_check_report import Finding

FOLDER = Path(__file__).parent
SCRIPT = FOLDER / "gpu_check.py"

_START_S = 60.0
"""Time for a process to import torch, which is slow when its files are not in the disk cache."""

_LEAST_S = 5.0
"""Time below which no check is started: it would not suffice to start CUDA."""

_END_S = 5.0
"""Time for a process to end its daemons and the like; those end by themselves when it is killed."""

_LOOK_S = 0.2
_DUMP_S, _DUMP_LOOKS = 0.2, 50
"""Time between two looks at tracebacks, which are written in many pieces, and the number of looks."""

_FRAMES, _LINES = 3, 240

_MOST_DUMPED = 4
"""Processes of a check that hangs whose tracebacks are asked for, besides its own."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check, which may yield several findings.

    Attributes:
        name: for ``--only``.
        module, function: its function, in a module of this folder; the function yields findings.
        limit_s: timeout, without the start of its process.
    """

    name: str
    module: str
    function: str
    limit_s: float


def run_checks(
    checks: Sequence[Check],
    until_s: float,
    script: Path = SCRIPT,
    now_s: Callable[[], float] = time.monotonic,
) -> Iterator[Finding]:
    """Runs checks one after the other and yields their findings.

    Consecutive checks of one module share a process, since torch and CUDA take seconds to start; after a
    check that fails the rest get a new one. The last check may take all the time that is left.

    Args:
        checks: in their order.
        until_s: deadline on the clock.
        script: runs the checks of a process, given ``--child`` and their names.
        now_s: the clock.
    """
    left = list(checks)
    while left:
        together = [check.name for check in takewhile(lambda one: one.module == left[0].module, left)]
        if until_s - now_s() < _LEAST_S:
            yield Finding(left.pop(0).name, "measured", "no time was left for it", False)
            continue
        with _child(script, together, now_s) as child:
            while together and child.is_well:
                check = left.pop(0)
                together.pop(0)
                yield from child.findings(check.name, check.limit_s if left else math.inf, until_s)


def work_off(checks: Sequence[Check]) -> int:
    """Runs checks in the child process; writes findings and the ends of checks, a line each.

    A check whose packages are missing is left out. Any other error ends the process, since CUDA may not be
    usable any more.
    """
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    # Processes that a check starts inherit both: SIGABRT makes them tell where they are, without a core dump.
    os.environ["PYTHONFAULTHANDLER"] = "1"
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    # SystemExit unwinds the check's context managers, which end daemons and the like.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    for check in checks:
        is_well = True
        try:
            function = getattr(importlib.import_module(check.module), check.function)
            _tell({"begins": check.name})
            began_s = time.monotonic()
            for finding in function():
                _write(replace(finding, took_s=round(time.monotonic() - began_s, 1)))
        except ModuleNotFoundError as error:
            is_well = _is_foreign(error)
            _write(left_out(check.name, error) if is_well else _failed(check.name, error))
        except Exception as error:
            is_well = False
            _write(_failed(check.name, error))
        _tell({"ended": check.name})
        if not is_well:
            return 1
    return 0


def left_out(name: str, error: ModuleNotFoundError) -> Finding:
    """Returns the finding of a check that lacks a package."""
    return Finding(name, "measured", f"left out: the Python package {error.name} is missing", None)


def _is_foreign(error: ModuleNotFoundError) -> bool:
    """Returns whether the missing package is not a part of this tree."""
    root = (error.name or "ekya").partition(".")[0]
    return root != "ekya" and not (FOLDER / f"{root}.py").exists()


def _failed(name: str, error: Exception) -> Finding:
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    where = ", ".join(f"{Path(one.filename).name}:{one.lineno} {one.name}" for one in reversed(frames))
    said = " ".join(str(error).split())[:300]
    told = "".join(traceback.format_exception(error)).splitlines()[-_LINES:]
    return Finding(name, "measured", f"{type(error).__name__}: {said} ({where})", False, {"traceback": told})


def _write(finding: Finding) -> None:
    _tell({"finding": asdict(finding)})


def _tell(what: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


@contextmanager
def _child(script: Path, names: Sequence[str], now_s: Callable[[], float]) -> Iterator["_Child"]:
    # The rest of the path stays: it may hold packages that a check needs.
    path = (str(FOLDER.parent), str(FOLDER), os.environ.get("PYTHONPATH"))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))}
    # Both sides share one file position, so writes must append.
    with tempfile.TemporaryFile("a+", errors="replace") as errors:
        # A separate process group, so that everything the process has started ends with it.
        process = subprocess.Popen(
            [sys.executable, str(script), "--child", *names],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            errors="replace",
            env=environment,
            start_new_session=True,
        )
        child = _Child(process, errors, now_s)
        try:
            yield child
        except BaseException:
            child.is_well = False
            raise
        finally:
            child.end()


class _Child:
    """Parent's handle of a process that runs checks."""

    def __init__(self, process: "subprocess.Popen[str]", errors: IO[str], now_s: Callable[[], float]) -> None:
        self._process, self._errors, self._now_s = process, errors, now_s
        self._lines: queue.Queue[dict[str, Any]] = queue.Queue()
        # A thread reads: processes that the child has started may hold the pipe open after its end.
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.is_well = True

    def findings(self, check: str, limit_s: float, until_s: float) -> Iterator[Finding]:
        """Yields the findings of one check, and a failure if it does not end well.

        Args:
            check: its name.
            limit_s: timeout from its beginning on.
            until_s: deadline on the clock, also for the start of the process.
        """
        began_s = self._now_s()
        end_s = min(began_s + _START_S, until_s)
        while True:
            told = self._next(end_s)
            if told is None:
                self.is_well = False
                took_s = round(self._now_s() - began_s, 1)
                why = self._hangs(took_s) if self._process.poll() is None else self._died()
                yield Finding(check, "measured", why, False, {"stderr": self._said()}, took_s)
                return
            if "begins" in told:
                began_s = self._now_s()
                end_s = min(began_s + limit_s, until_s)
                continue
            if "ended" in told:
                return
            finding = Finding(**told["finding"])
            if "traceback" in finding.figures:
                # The checks that follow a failure get a new process.
                self.is_well = False
                finding = replace(finding, figures={**finding.figures, "stderr": self._said()})
            yield finding

    def end(self) -> None:
        """Ends the process and everything it has started."""
        if self._process.poll() is None and self.is_well:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
        if self._process.poll() is None:
            self._signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            with suppress(ValueError):  # Checks may print other lines.
                told = json.loads(line)
                if isinstance(told, dict) and told.keys() & {"begins", "finding", "ended"}:
                    self._lines.put(told)

    def _next(self, until_s: float) -> dict[str, Any] | None:
        """Returns the next message; None when the process has ended or the time is over."""
        while True:
            has_ended = self._process.poll() is not None
            if has_ended:
                self._reader.join(_LOOK_S)
            with suppress(queue.Empty):
                return self._lines.get(timeout=_LOOK_S)
            if has_ended or self._now_s() >= until_s:
                return None

    def _hangs(self, took_s: float) -> str:
        """Returns the positions at which it and the processes that it has started hang; ends the latter."""
        told = [
            f"it had not ended after {took_s:.0f} s",
            *_frames(self._dumped(self._process.pid, signal.SIGUSR1)),
        ]
        others = _members(self._process.pid)
        # All are stopped first, so that none goes on because another one has ended.
        for pid in others:
            _send(pid, signal.SIGSTOP)
        for pid in others[:_MOST_DUMPED]:
            _send(pid, signal.SIGABRT)
            frames = _frames(self._dumped(pid, signal.SIGCONT))
            told += ["and a process of it", *frames] if frames else []
        for pid in others[_MOST_DUMPED:]:
            _send(pid, signal.SIGCONT)
        return "; ".join(told)

    def _dumped(self, pid: int, number: signal.Signals) -> list[str]:
        """Sends a signal and returns the lines that are written because of it, once no more come."""
        self._errors.seek(0, os.SEEK_END)
        before = self._errors.tell()
        _send(pid, number)
        lines: list[str] = []
        for _ in range(_DUMP_LOOKS):
            time.sleep(_DUMP_S)
            ended, last = _state_of(pid)[:1] in {"", "Z"}, lines
            self._errors.seek(before)
            lines = self._errors.read().splitlines()
            if ended or (lines and lines == last):
                break
        return lines

    def _died(self) -> str:
        code = self._process.returncode
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"it ended with {code}"
        words = list(takewhile(lambda line: not line.startswith("Fatal Python error"), self._said()))
        last = [line for line in words if line.strip()][-1:]
        return "; ".join([how, *last, *_frames(self._said())])

    def _said(self) -> list[str]:
        self._errors.seek(0)
        return self._errors.read().splitlines()[-_LINES:]

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def _members(group: int) -> list[int]:
    """Returns the other processes of a process group, in the order of their numbers."""
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        number = int(stat.parent.name)
        if number != group and _state_of(number).split()[2:3] == [str(group)]:
            members.append(number)
    return sorted(members)


def _state_of(pid: int) -> str:
    """Returns state, parent, group and more of a process; nothing where it is gone."""
    with suppress(OSError):
        # The name before the last bracket may contain anything.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].strip()
    return ""


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _frames(dump: Sequence[str]) -> list[str]:
    """Returns the innermost frames of the thread that was running, from Python's fault handler."""
    own = dropwhile(lambda line: not line.startswith("Current thread"), dump)
    return [line.strip() for line in islice(own, 1, 1 + _FRAMES) if line.startswith("  File")]
