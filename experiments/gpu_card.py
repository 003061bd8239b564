"""Emulated GPU servers: `ekya` beside rules of one line, and the first run on an H200 as it was lost.

    python experiments/gpu_card.py --cameras 16 --seeds 11
    python experiments/gpu_card.py --cameras 48 --seeds 21,22,23,24,25 --ways ekya,uniform,uniform:inference=900

A way is a scheduler; `first/` before it plays the first run's beliefs: wall times for GPU times, speed in
proportion to the share, a process for each camera. Seeds 1 to 9 are for choosing; figures are of seeds from 11 on.
All ways of a seed have the same frames, and are scored on the objects that none of them labelled. A run whose
folder is complete is not made again.
"""

import argparse
import json
import logging
import shutil
from pathlib import Path
from typing import Any

from ekya.cli.fleet_from_options import repeat_cameras
from ekya.config.fleet_file import DEFAULT_FLEET
from ekya.config.fleet_reading import load_fleet
from ekya.config.shipped import shipped_path
from ekya.pipeline.costs import fitted_by_card, load_card
from ekya.results.comparison import compare_schedulers
from ekya.results.storage.run_folder import RunFolder, plain_name
from ekya.simulation.emulated.run import Belief, emulate

WAYS = "ekya,uniform,uniform:inference=300,uniform:inference=900,first/ekya,first/uniform"
FIRST = "first/"


def play_card(asked: argparse.Namespace) -> dict[str, Any]:
    """Plays all ways with all seeds; returns the result of ``compare_schedulers``."""
    card = load_card(Path(asked.card))
    changes = {"windows": asked.windows, "gpus": float(asked.gpus)}
    fleet = repeat_cameras(load_fleet(shipped_path(DEFAULT_FLEET), changes), asked.cameras)
    root = asked.runs / plain_name(f"{asked.card}-{asked.gpus}-{asked.cameras}-{asked.windows}")

    def play(way: str, seed: int) -> Path:
        belief = Belief.FIRST if way.startswith(FIRST) else Belief.CARD
        believed = card.as_first_believed() if belief is Belief.FIRST else card
        fitted, _ = fitted_by_card(fleet, card=believed)
        path = root / plain_name(f"{way}-seed{seed}")
        if not (path / "summary.json").is_file():
            shutil.rmtree(path, ignore_errors=True)
            scheduler = way.removeprefix(FIRST)
            folder = RunFolder.create_or_reuse(root, path.name)
            emulate(folder, fitted, scheduler, seed, lambda batch, step: None, card, belief)
        return path

    return compare_schedulers(
        fleet, asked.ways.split(","), [int(seed) for seed in asked.seeds.split(",")], play
    )


def table_of(result: dict[str, Any]) -> list[str]:
    """Returns a line for each run, and one for each difference from the first way."""
    lines = []
    for run in result["runs"]:
        frames, trained = run["frames"], run["retrainings"]
        lines.append(
            f"{Path(run['folder']).name:34} {100 * run['mean_accuracy']:5.1f}%  due "
            f"{100 * frames['due'] / frames['arrived']:3.0f}% of {frames['arrived']}, of these analysed "
            f"{100 * frames['analysed'] / frames['due']:5.1f}%, late by host {frames['late_host']}, by GPU "
            f"{frames['late_gpu']}, lost {frames['lost']}; {trained['finished']} of {trained['started']} retrained"
        )
    return lines + [json.dumps(pair) for pair in result["pairs"]]


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    options.add_argument("--card", default="h200", help="a shipped card, or a file")
    options.add_argument("--gpus", type=int, default=1)
    options.add_argument("--cameras", type=int, default=16)
    options.add_argument("--windows", type=int, default=3)
    options.add_argument("--seeds", default="1")
    options.add_argument("--ways", default=WAYS)
    options.add_argument("--runs", type=Path, default=Path("runs/gpu_card"))
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    print("\n".join(table_of(play_card(options.parse_args()))))
