"""Checks that shares hold on this machine's GPU: expected and measured values.

    make gpu-check
    make gpu-check ARGS='--only swap'
    make gpu-check ARGS='--json -'

Needs this tree, torch with CUDA and the packages of its wheels; nothing is downloaded, and a check that lacks
a package is left out. At most nine minutes. Checks run in separate processes, so one that fails, hangs or
loses the GPU does not stop the others. When all checks run, docs/gpu_check.json and the table of docs/gpu.md
are written. Without a GPU it prints an error and leaves both unchanged.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch
from gpu_check_process import Check, run_checks, work_off
from gpu_check_report import Finding, Machine, as_json, write_up

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT, PAGE = ROOT / "docs" / "gpu_check.json", ROOT / "docs" / "gpu.md"

NO_GPU, UNMET, STOPPED = 2, 1, 130
LIMIT_S = 525.0
"""Limit of all checks: nine minutes, less the time to write and end."""

CHECKS = (
    Check("mps", "gpu_check_mps", "mps", 30),
    Check("work", "gpu_check_work", "work", 60),
    Check("student-work", "gpu_check_work", "student", 50),
    Check("swap", "gpu_check_swap", "swap", 30),
    Check("student-swap", "gpu_check_swap", "student", 25),
    Check("memory", "gpu_check_counters", "memory", 20),
    Check("counters", "gpu_check_counters", "counters", 10),
    Check("inference", "gpu_check_inference", "ways", 20),
    Check("streams", "gpu_check_inference", "streams", 15),
    Check("student", "gpu_check_inference", "student", 10),
    Check("run", "gpu_check_run", "runs", 75),
)
"""Checks in the order in which they run. The last takes all time that is left, and needs the most."""


def main(arguments: Sequence[str] | None = None, checks: Sequence[Check] = CHECKS) -> int:
    """Returns the exit code: 0 all measured checks are met, 1 not all, 2 no GPU, 130 stopped."""
    options = _parser(checks).parse_args(arguments)
    if options.child is not None:
        return work_off([check for check in checks if check.name in options.child])
    machine = _machine()
    if machine is None:
        sys.stderr.write("gpu-check needs an NVIDIA GPU, and torch sees none\n")
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
    if not options.only:
        write_up(machine, findings, DOCUMENT, PAGE)
    if options.json == "-":
        sys.stdout.write(as_json(machine, findings))
    elif options.json:
        Path(options.json).write_text(as_json(machine, findings))
    return UNMET if any(finding.met is False for finding in findings) else 0


def _tell(finding: Finding) -> None:
    mark = {True: "met     ", False: "NOT MET ", None: "LEFT OUT"}[finding.met]
    sys.stderr.write(f"{mark} {finding.name}: {finding.measured} (expected: {finding.expected})\n")


def _machine() -> Machine | None:
    """Returns what is checked; None without a GPU."""
    if not torch.cuda.is_available():
        return None
    driver = int(torch._C._cuda_getDriverVersion())
    today = datetime.now(tz=UTC).date().isoformat()
    name = torch.cuda.get_device_name(0)
    return Machine(name, f"{driver // 1000}.{driver % 1000 // 10}", torch.__version__, today)


def _parser(checks: Sequence[Check]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpu_check.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [check.name for check in checks]
    parser.add_argument("--only", action="append", choices=names, help="Only this check; writes no docs.")
    parser.add_argument("--json", metavar="FILE", help="Also write the findings there; - is standard output.")
    parser.add_argument("--child", nargs="+", choices=names, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
