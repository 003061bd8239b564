"""Measures what Ekya does on this machine's GPU: expected and measured values, and a cost card.

    make gpu-check
    make gpu-check ARGS='--only trainers'
    make gpu-check ARGS=--resume
    make gpu-check ARGS=--rehearse

Nothing is downloaded, and what this machine lacks is left out. At most 460 s: each item runs in a process of
its own, within its own time; what it leaves, later ones may have. Results are written after each item, so
--resume goes on after a stop. The folder has findings.json, card.json (for ekya run --clock virtual --card),
a log of each item, and the runs with their journals. --rehearse does a little of it on the CPU.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import gpu_check_process as process
import torch
from gpu_check_card import MACHINE, make_card
from gpu_check_process import Finding, Item, Rig

NO_GPU, UNMET, STOPPED = 2, 1, 130
OUT, REHEARSED = Path("runs/gpu-check"), Path("runs/gpu-check-rehearsal")
SLOWER = 10  # in a rehearsal: a CPU may have other work

ITEMS = (
    Item("machine", "gpu_check_host", "describe_machine", 12),
    Item("costs", "gpu_check_costs", "measure_costs", 50),
    Item("trainers", "gpu_check_shares", "measure_trainers", 50),
    Item("server", "gpu_check_shares", "measure_server", 45),
    Item("host", "gpu_check_host", "measure_host", 15),
    Item("memory", "gpu_check_host", "measure_memory", 15),
    Item("mps", "gpu_check_mps", "check_mps", 35),
    Item("swap", "gpu_check_shares", "measure_swaps", 20),
    Item("run-ekya", "gpu_check_run", "run_ekya", 72),
    Item("run-uniform", "gpu_check_run", "run_uniform", 72),
    Item("run-many", "gpu_check_run", "run_many", 72),
)
"""In the order of what a second of them is worth: those that fill the card come before the runs."""


def main(
    arguments: Sequence[str] | None = None,
    items: Sequence[Item] = ITEMS,
    run: Callable[[Item, Rig, float], list[Finding]] = process.run_item,
    now_s: Callable[[], float] = time.monotonic,
) -> int:
    """Returns the exit code: 0 all that was measured is met, 1 not all, 2 no GPU, 130 stopped."""
    parser = argparse.ArgumentParser(
        prog="gpu_check.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [item.name for item in items]
    parser.add_argument("--only", action="append", choices=names, help="Only this item; others keep theirs.")
    parser.add_argument("--resume", action="store_true", help="Leave out items that have results already.")
    parser.add_argument("--rehearse", action="store_true", help="Try the check itself on the CPU.")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help=f"Default: {OUT}.")
    parser.add_argument("--child", choices=names, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    out = options.out or (REHEARSED if options.rehearse else OUT)
    rig, begun_s, planned_s = Rig(out.absolute(), options.rehearse), now_s(), 0.0
    if options.child is not None:
        return process.work_off(next(item for item in items if item.name == options.child), rig)
    if not rig.rehearses and not torch.cuda.is_available():
        sys.stderr.write("gpu-check needs an NVIDIA GPU, and torch sees none; --rehearse needs none\n")
        return NO_GPU
    document = rig.out / "findings.json"
    rig.out.mkdir(parents=True, exist_ok=True)
    findings = process.read_findings(document) if options.resume or options.only else []
    done = {one.item for one in findings} if options.resume else set()
    for item in items:
        if (options.only and item.name not in options.only) or item.name in done:
            continue
        # What earlier items have left is this one's too.
        planned_s += item.limit_s * rig.pick(1, SLOWER)
        try:
            found = run(item, rig, begun_s + planned_s - now_s())
        except KeyboardInterrupt:
            sys.stderr.write(f"stopped; --resume goes on with {item.name}\n")
            return STOPPED
        sys.stderr.writelines(f"{finding}\n" for finding in found)
        findings = [one for one in findings if one.item != item.name] + found
        machine = {"when": datetime.now(tz=UTC).date().isoformat(), "rehearsal": rig.rehearses}
        process.write_findings(document, {**process.figures_of(findings, MACHINE), **machine}, findings)
        make_card(findings).save(rig.out / "card.json")
    sys.stderr.write(f"{document} and card.json beside it have all of it\n")
    return UNMET if any(one.met is False for one in findings) else 0


if __name__ == "__main__":
    sys.exit(main())
