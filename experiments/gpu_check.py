"""Whether shares hold on this machine's GPU: what was expected, and what was measured.

    make gpu-check
    python experiments/gpu_check.py --only resize
    python experiments/gpu_check.py --json -

Needs this tree, torch with CUDA and what its wheels bring; nothing is fetched. At most eight minutes: a check
that has no time left is said to be missing. Each check is a process of its own, so one that fails, hangs or
loses the GPU does not stop the others. With all of them, docs/gpu_check.json and the table of docs/gpu.md are
written. Without a GPU it says so and leaves both alone.
"""

import argparse
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from gpu_check_report import Finding, Machine, as_json, write_up

from ekya.gpu.cuda_driver import CudaCalls, read_layouts

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT, PAGE = ROOT / "docs" / "gpu_check.json", ROOT / "docs" / "gpu.md"

NO_GPU, UNMET, STOPPED = 2, 1, 130
LIMIT_S = 465.0
"""Of everything: eight minutes, less what writing and ending takes."""


@dataclass(frozen=True, slots=True)
class Check:
    """What one process looks at.

    Attributes:
        name: for ``--only``.
        module, function: where it is; the function yields findings.
        limit_s: after that it is ended.
    """

    name: str
    module: str
    function: str
    limit_s: float


CHECKS = (
    Check("mps", "gpu_check_mps", "daemon", 45),
    Check("split", "gpu_check_shares", "split", 45),
    Check("gate", "gpu_check_shares", "gate", 60),
    Check("disjoint", "gpu_check_shares", "disjoint", 45),
    Check("speed", "gpu_check_shares", "speed", 60),
    Check("beside", "gpu_check_shares", "beside", 60),
    Check("resize", "gpu_check_shares", "resize", 60),
    Check("restart", "gpu_check_shares", "restart", 90),
    Check("clients", "gpu_check_mps", "clients", 90),
    Check("counters", "gpu_check_counters", "counters", 45),
    Check("memory", "gpu_check_counters", "memory", 60),
    Check("inference", "gpu_check_inference", "ways", 90),
    Check("inference-shares", "gpu_check_inference", "shares", 60),
    Check("graphs", "gpu_check_inference", "graphs_stay", 45),
)
"""In the order in which they run; the names of all modules are in this folder."""


def main(arguments: Sequence[str] | None = None, checks: Sequence[Check] = CHECKS) -> int:
    """Returns the exit code: 0 all met, 1 not all, 2 no GPU, 130 stopped."""
    options = _parser(checks).parse_args(arguments)
    if options.child is not None:
        return _child(next(check for check in checks if check.name == options.child))
    report = read_layouts()
    if not report.layouts:
        sys.stderr.write(f"gpu-check needs an NVIDIA GPU: {report.why}\n")
        return NO_GPU
    wanted = [check for check in checks if not options.only or check.name in options.only]
    findings: list[Finding] = []
    try:
        for finding in run_checks(wanted, time.monotonic() + LIMIT_S):
            _tell(finding)
            findings.append(finding)
    except KeyboardInterrupt:
        sys.stderr.write("stopped; nothing was written\n")
        return STOPPED
    machine = _machine()
    if not options.only:
        write_up(machine, findings, DOCUMENT, PAGE)
    if options.json == "-":
        sys.stdout.write(as_json(machine, findings))
    elif options.json:
        Path(options.json).write_text(as_json(machine, findings))
    return 0 if all(finding.met for finding in findings) else UNMET


def run_checks(checks: Iterable[Check], until_s: float) -> Iterator[Finding]:
    """One after the other, each in a process of its own."""
    for check in checks:
        left_s = until_s - time.monotonic()
        if left_s < 5.0:
            yield Finding(check.name, "measured", "no time was left for it", False)
            continue
        yield from _run(check, min(check.limit_s, left_s))


def _run(check: Check, limit_s: float) -> Iterator[Finding]:
    """What the check's process tells, a line each, and how it ended if that was not well."""
    began_s = time.monotonic()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(Path(__file__).parent)))}
    # A group of its own: what it has started ends with it.
    process = subprocess.Popen(
        [sys.executable, __file__, "--child", check.name],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    why = ""
    try:
        out, errors = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        _end(process)
        out, errors = process.communicate()
        why = f"it had not ended after {limit_s:.0f} s"
    except BaseException:
        _end(process)
        raise
    took_s = round(time.monotonic() - began_s, 1)
    for line in out.splitlines():
        if line.startswith("{"):
            yield replace(Finding(**json.loads(line)), took_s=took_s)
    if why or process.returncode != 0:
        last = (errors.strip().splitlines() or [f"it ended with {process.returncode}"])[-1]
        yield Finding(check.name, "measured", why or last, False, took_s=took_s)


def _end(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)


def _child(check: Check) -> int:
    # A signal unwinds what the check has opened, such as daemons.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    for finding in getattr(importlib.import_module(check.module), check.function)():
        sys.stdout.write(json.dumps(asdict(finding)) + "\n")
        sys.stdout.flush()
    return 0


def _tell(finding: Finding) -> None:
    mark = "met    " if finding.met else "NOT MET"
    sys.stderr.write(f"{mark} {finding.name}: {finding.measured} (expected: {finding.expected})\n")


def _machine() -> Machine:
    calls = CudaCalls()
    name = bytes(calls("cuDeviceGetName", 128, calls("cuDeviceGet", 0))).split(b"\0")[0].decode()
    number = int(calls("cuDriverGetVersion"))
    today = datetime.now(tz=UTC).date().isoformat()
    return Machine(name, f"{number // 1000}.{number % 1000 // 10}", version("torch"), today)


def _parser(checks: Sequence[Check]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpu_check.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [check.name for check in checks]
    parser.add_argument("--only", action="append", choices=names, help="Only this check; writes no docs.")
    parser.add_argument("--json", metavar="FILE", help="Also write the findings there; - is standard output.")
    parser.add_argument("--child", choices=names, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
