"""Findings of `make gpu-check`, and a process for each of its items, which is ended when its time is over."""

import faulthandler
import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import Any, TypeVar

from ekya.system.files import write_text_atomic

FOLDER = Path(__file__).parent
SCRIPT = FOLDER / "gpu_check.py"
END_S, DUMP_S, LINES = 5.0, 1.0, 60
"""Time for an item's process to end its daemons, and for stacks; lines of its log that are kept."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Finding:
    """What an item has found: texts for people, and the numbers behind them with units in their names.

    ``met`` is None for what this machine lacks; ``took_s`` is from the beginning of its item.
    """

    name: str
    expected: str
    measured: str
    met: bool | None
    figures: Mapping[str, Any] = field(default_factory=dict)
    item: str = ""
    took_s: float = 0.0

    def __str__(self) -> str:
        """Formats it as one line."""
        word = "LEFT OUT" if self.met is None else "met" if self.met else "NOT MET"
        return f"{word:8} {self.name}: {self.measured} (expected: {self.expected})"


def read_findings(document: Path) -> list[Finding]:
    """Returns the findings of the items that have ended; none without the file."""
    found = json.loads(document.read_text())["findings"] if document.exists() else ()
    return [Finding(**one) for one in found]


def write_findings(document: Path, machine: Mapping[str, object], findings: Sequence[Finding]) -> None:
    """Writes all findings so far, and what they are of."""
    values = {"machine": machine, "findings": [asdict(one) for one in findings]}
    write_text_atomic(document, json.dumps(values, indent=1, ensure_ascii=False) + "\n")


def figures_of(findings: Sequence[Finding], name: str) -> Mapping[str, Any]:
    """Returns the figures of the finding of this name; none if it was not measured."""
    return next((one.figures for one in findings if one.name == name and one.met is not None), {})


@dataclass(frozen=True, slots=True)
class Item:
    """A part of the check: ``function`` of ``module`` takes a ``Rig`` and yields findings in ``limit_s``."""

    name: str
    module: str
    function: str
    limit_s: float


@dataclass(frozen=True, slots=True)
class Rig:
    """Folder of results, logs and journals; and whether a little of the work is done on the CPU instead."""

    out: Path
    rehearses: bool = False

    @property
    def device(self) -> str:
        """torch's name of the device."""
        return self.pick("cuda", "cpu")

    def pick(self, full: _T, short: _T) -> _T:
        """Returns the first on a GPU, the second in a rehearsal."""
        return short if self.rehearses else full

    def told_by(self, item: Item) -> Path:
        """Returns the file with the findings of an item, a line each."""
        return self.out / "items" / f"{item.name}.jsonl"


def run_item(
    item: Item, rig: Rig, limit_s: float, script: Path = SCRIPT, wait: Callable[..., int] = Popen.wait
) -> list[Finding]:
    """Runs an item at most some seconds; returns its findings, and another one if it does not end well."""
    told, why = rig.told_by(item), ""
    log = told.with_suffix(".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    told.unlink(missing_ok=True)
    command = [sys.executable, str(script), "--child", item.name, "--out", str(rig.out)]
    command += ["--rehearse"] * rig.rehearses
    # The rest of the path stays: it may hold packages that an item needs.
    path = (str(FOLDER.parent), str(FOLDER), os.environ.get("PYTHONPATH"))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))}
    with log.open("wb") as output:
        # A separate process group, so that all that the process has started ends with it.
        process = Popen(command, stdout=output, stderr=output, env=environment, start_new_session=True)
        try:
            code = wait(process, limit_s)
            why = f"it ended with {code}" if code else ""
        except TimeoutExpired:
            why = f"it had not ended after {limit_s:.0f} s"
            # All say where they are. What does not know the signal ends, as it would anyway.
            _signal_group(process, signal.SIGUSR1)
            time.sleep(DUMP_S)
        finally:
            process.terminate()
            with suppress(TimeoutExpired):
                process.wait(END_S)
            _signal_group(process, signal.SIGKILL)
            process.wait()
    lines = told.read_text().splitlines() if told.exists() else ()
    findings = [Finding(**json.loads(line)) for line in lines]
    if why:
        said = log.read_text(errors="replace").splitlines()[-LINES:]
        why = "; ".join([why, *[line for line in said if line.strip()][-1:]])
        findings.append(Finding(item.name, "measured", why, False, {"log": said}, item.name))
    return findings


def work_off(item: Item, rig: Rig) -> int:
    """Runs an item in its own process and writes each finding at once; returns the exit code."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    # SystemExit unwinds the item's context managers, which end daemons and the like.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    told, began_s = [], time.monotonic()
    try:
        for finding in getattr(importlib.import_module(item.module), item.function)(rig):
            took_s = round(time.monotonic() - began_s, 1)
            told.append(json.dumps(asdict(replace(finding, item=item.name, took_s=took_s))) + "\n")
            write_text_atomic(rig.told_by(item), "".join(told))
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def _signal_group(process: "Popen[bytes]", number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
