"""Two live servers of two streams each, one of which has too much to do: what a tier above them is worth.

    python experiments/fleet_live.py
    python experiments/fleet_live.py --seeds 0,1,2 --windows 4 --window-s 60 --json -

Four cameras of the synthetic city, three frames a second, on the wall clock: two on a server with 0.2 of a
GPU, which cannot train beside serving, and two on one with more. For each seed there is a run with every
tier, one after the other, each as long as its windows and half a minute more. Leave the machine to it.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from ekya import cli
from ekya.core.units import us_to_seconds
from ekya.fleet.run.loan_file import LoanRecord, read_loans
from ekya.fleet.run.servers_folder import ServersFolder
from ekya.shipped import shipped_path

NORTH, SOUTH = ("cam-1", "cam-2"), ("cam-3", "cam-4")
NORTH_GPUS, SOUTH_GPUS = 0.2, 0.8
FPS = 3
NONE = "none"
SCENE = -1
"""Of each camera: the one that differs most from what its model was trained on."""


def write_servers(folder: Path, window_s: float, windows: int, mb_s: float) -> Path:
    """The servers file, beside its fleet file."""
    raw = yaml.safe_load(shipped_path("datasets/synthetic_city/fleet.yaml").read_text(encoding="utf-8"))
    raw |= {"window_s": window_s, "windows": windows, "gpus": SOUTH_GPUS}
    raw |= {"preparation": {"share_milli": 100, "fraction": 0.15}}
    raw["retraining"] |= {"epochs": [4], "trainable_blocks": [1], "data_fractions": [1.0]}
    raw["streams"] = [one for one in raw["streams"] if one["id"] in NORTH + SOUTH]
    for stream in raw["streams"]:
        scene = {key: its for key, its in stream["source"]["scenes"][SCENE].items() if key != "ramp_s"}
        stream["source"] |= {"fps": FPS, "scenes": [scene | {"at_s": 0}]}
    (folder / "fleet.yaml").write_text(yaml.safe_dump(raw), encoding="utf-8")
    north = {
        "site": "north",
        "streams": list(NORTH),
        "changes": {"gpus": NORTH_GPUS},
        "crops_may_leave": True,
    }
    servers = [north, {"site": "south", "streams": list(SOUTH)}]
    file = {"name": "town", "fleet": "fleet.yaml", "links": {"mb_s": mb_s}, "servers": servers}
    path = folder / "servers.yaml"
    path.write_text(yaml.safe_dump(file), encoding="utf-8")
    return path


def played(servers: Path, folder: Path, tier: str, seed: int) -> dict[str, Any]:
    """What is told of one run."""
    told = folder / "told.json"
    words = ["fleet", "run", str(servers), "--runs", str(folder), "--tier", tier, "--seed", str(seed)]
    code = cli.main([*words, "--name", f"{tier}-{seed}", "--json", str(told)])
    if code != 0:
        raise SystemExit(code)
    summary = json.loads(told.read_text(encoding="utf-8"))
    loans = read_loans(ServersFolder(folder / f"{tier}-{seed}").loans) if tier != NONE else []
    return {
        "tier": tier,
        "seed": seed,
        "mean_accuracy": summary["mean_accuracy"],
        **{site: its["mean_accuracy"] for site, its in summary["servers"].items()},
        "retrainings": sum(its["retrainings"]["finished"] for its in summary["servers"].values()),
        "loans": [_loan(made) for made in loans],
        "lost": summary["frames"]["lost"],
    }


def _loan(made: LoanRecord) -> dict[str, Any]:
    foreseen_us, took_us = made.arrives_us - made.agreed_us, made.over_us - made.agreed_us
    return {
        "outcome": made.outcome,
        "foreseen_s": round(us_to_seconds(foreseen_us), 1),
        "took_s": round(us_to_seconds(took_us), 1),
    }


def in_words(told: dict[str, Any]) -> str:
    """A line for people."""
    loans = ", ".join(
        f"{one['took_s']} s instead of {one['foreseen_s']} ({one['outcome']})" for one in told["loans"]
    )
    return (
        f"seed {told['seed']}, {told['tier']}: {told['mean_accuracy']:.2%}, north {told['north']:.2%}, "
        f"south {told['south']:.2%}; {told['retrainings']} retrainings, {told['lost']} frames lost"
        f"{'; loans took ' + loans if loans else ''}\n"
    )


def gains(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What each tier gains over none, in points, in the mean and by seed."""
    alone = {row["seed"]: row for row in rows if row["tier"] == NONE}
    gained: dict[str, dict[str, Any]] = {}
    for tier in sorted({row["tier"] for row in rows} - {NONE}):
        pairs = [(row, alone[row["seed"]]) for row in rows if row["tier"] == tier and row["seed"] in alone]
        by_seed = {
            of: [round(100 * (row[of] - other[of]), 2) for row, other in pairs]
            for of in ("mean_accuracy", "north", "south")
        }
        gained[tier] = {
            of: {"mean": round(fmean(points), 2), "by_seed": points}
            for of, points in by_seed.items()
            if points
        }
    return gained


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tier", default="none,net", help="Who finds loans; none: nobody.")
    parser.add_argument("--seeds", default="0", help="Of everything that is drawn but the streets.")
    parser.add_argument("--windows", type=int, default=4, help="How many windows to run.")
    parser.add_argument("--window-s", type=float, default=60.0, help="Length of each.")
    parser.add_argument("--mb-s", type=float, default=1000.0, help="Of every link; here it is memory.")
    parser.add_argument("--runs", type=Path, metavar="DIR", help="Keep the run folders there.")
    parser.add_argument("--json", metavar="FILE", help="Also write the figures there; - is standard output.")
    options = parser.parse_args(arguments)
    rows = []
    for seed in (int(word) for word in options.seeds.split(",")):
        for tier in options.tier.split(","):
            with ExitStack() as stack:
                folder = options.runs or Path(stack.enter_context(tempfile.TemporaryDirectory()))
                servers = write_servers(folder, options.window_s, options.windows, options.mb_s)
                told = played(servers, folder, tier, seed)
            rows.append(told)
            sys.stderr.write(in_words(told))
    gained = gains(rows)
    for tier, its in gained.items():
        sys.stderr.write(f"{tier} gains, in points: {its}\n")
    text = json.dumps({"runs": rows, "gains": gained}, indent=2) + "\n"
    if options.json == "-":
        sys.stdout.write(text)
    elif options.json:
        Path(options.json).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
