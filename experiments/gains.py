"""Gains of Ekya's decisions over others', with real training on two scripts; all else is the same for all.

    python experiments/gains.py --jobs 2
    python experiments/gains.py --seeds 1,2,3 --fleet datasets/synthetic_city/fleet.yaml --jobs 2
    python experiments/gains.py --kept gains/ --json gains.json

Each case is one `ekya compare` on virtual time: all schedulers on the same frames, scored on the same
objects. ``--kept`` keeps what was measured, so that a measurement continues where it ended. A
camera that is moved is back when its accuracy over three seconds stays at 60% for four.

Settings were chosen on ``TUNING_SEEDS`` of the shipped fleet, figures are of ``FIGURE_SEEDS``, the
default. No setting was chosen on the second script.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Annotated

# Must be set before numpy is imported: each case uses one thread.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import typer
from cases import Jobs, run_cases
from estimate import Estimate
from recipe import RESULTS, Json, Out, as_csv, print_rows, run

from ekya.cli.command import open_output
from ekya.cli.options import parse_integers
from ekya.config.fleet_file import FleetConfig
from ekya.config.fleet_reading import load_fleet
from ekya.config.run_options import RunOptions
from ekya.config.shipped import shipped_path
from ekya.core.units import US_PER_S
from ekya.results.finalize import labelled_in_any, score_run
from ekya.results.metrics.accuracy import ScoreSeries
from ekya.results.storage.run_folder import RunFolder
from ekya.simulation.emulated.compare import compare
from ekya.system.files import write_text_atomic

TUNING_SEEDS = (1, 2, 3, 5, 31, 51, 52, 53, 54)
"""Settings were chosen on these, of the shipped fleet alone."""

FIGURE_SEEDS = (401, 402, 403, 404, 405)
"""Figures are of these, which were named before anything was played on them."""

SCRIPTS = ("datasets/synthetic_city/fleet.yaml", "datasets/synthetic_city/second_day.yaml")
"""Shipped fleets: that on which settings are chosen, and the same on another day."""

OURS = "ekya"
SCHEDULERS = (OURS, "thief", "paper", "uniform", "no-retrain")
"""``uniform`` gives inference a half of each share: on tuning seed 31 more than 700 or 900 thousandths."""

MEANS = {
    "thief": "the paper's search alone (`thief`)",
    "no-retrain": "not retraining (`no-retrain`)",
    "uniform": "uniform shares (`uniform`)",
    "paper": "the paper's search and micro-profiler (`paper`)",
}
"""Schedulers as docs/results.md names them, in its order; what they do not decide is the same for all."""

BACK_ACCURACY, OVER_S, HELD_S = 0.6, 3, 4
"""A moved camera is back when its accuracy, a mean over ``OVER_S``, stays that high for ``HELD_S``."""


@dataclass(frozen=True, slots=True)
class Case:
    """One fleet with one seed."""

    fleet: Path
    seed: int
    schedulers: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of its file of results."""
        return f"{self.fleet.stem}-{self.seed}.json"


@dataclass(frozen=True, slots=True)
class Row:
    """Result of one scheduler in one case.

    Attributes:
        accuracy: mean over cameras and windows.
        back_s: of each cut to another place, seconds until the camera is back; None where it is not before
            its next change.
    """

    script: str
    seed: int
    scheduler: str
    accuracy: float
    back_s: tuple[float | None, ...]


def cuts(fleet: FleetConfig) -> Iterator[tuple[str, float, float]]:
    """Yields cameras with the times at which they are moved at once, and of the change after each."""
    for stream in fleet.streams:
        scenes = stream.source.model_dump()["scenes"]
        ends = [float(scene["at_s"]) for scene in scenes[1:]] + [fleet.window_s * (fleet.windows or 0)]
        for before, scene, end in zip(scenes, scenes[1:], ends[1:], strict=False):
            if not scene["ramp_s"] and before["view"] != scene["view"]:
                yield stream.id, float(scene["at_s"]), end


def back_s(series: ScoreSeries, moved_s: float, end_s: float) -> float | None:
    """Returns seconds from the move until accuracy over three seconds stays high enough for four."""
    seconds = series.start_us // US_PER_S
    known = {int(at): place for place, at in enumerate(seconds)}

    def accuracy(second: int) -> float:
        """Of the three seconds that end with this one."""
        rows = [known[at] for at in range(second - OVER_S + 1, second + 1) if at in known]
        counted = int(np.sum(series.counted[rows]))
        return int(np.sum(series.correct[rows])) / counted if counted else 0.0

    first, last = int(moved_s) + 1, int(end_s)
    high = [accuracy(second) >= BACK_ACCURACY for second in range(first, last)]
    for place in range(len(high) - HELD_S + 1):
        if all(high[place : place + HELD_S]):
            return first + place + 1 - moved_s
    return None


def measure(case: Case) -> list[Row]:
    """Returns the results of one `ekya compare`."""
    fleet = load_fleet(case.fleet)
    with TemporaryDirectory() as folder:
        compared = compare(fleet, case.schedulers, (case.seed,), RunOptions(runs=Path(folder)))
        folders = [RunFolder(Path(one["folder"])) for one in compared["runs"]]
        labelled = {stream.id: labelled_in_any(folders, stream.id) for stream in fleet.streams}
        rows = []
        for one, own in zip(compared["runs"], folders, strict=True):
            scores = score_run(own, fleet, labelled)
            back = [back_s(scores[stream].series, at, end) for stream, at, end in cuts(fleet)]
            rows.append(
                Row(case.fleet.stem, case.seed, one["scheduler"], one["mean_accuracy"], tuple(back)),
            )
    return rows


def summary_rows(rows: Sequence[Row]) -> Iterator[dict[str, object]]:
    """Yields accuracies, our gains in points, and seconds until moved cameras are back."""
    for script, scheduler in product(
        dict.fromkeys(row.script for row in rows), dict.fromkeys(row.scheduler for row in rows)
    ):
        ours = {row.seed: row.accuracy for row in rows if (row.script, row.scheduler) == (script, OURS)}
        own = [row for row in rows if (row.script, row.scheduler) == (script, scheduler)]
        back = [np.inf if one is None else one for row in own for one in row.back_s]
        gain = Estimate.over_seeds([ours[row.seed] - row.accuracy for row in own if row.seed in ours])
        yield {
            "script": script,
            "scheduler": scheduler,
            "seeds": len(own),
            "accuracy": f"{fmean(row.accuracy for row in own):.1%}",
            "our gain": "" if scheduler == OURS else gain.in_points(),
            "back, median": "never" if np.isinf(median(back)) else f"{median(back):.0f} s",
            "back in 8 s": f"{sum(one <= 8 for one in back)} of {len(back)}",
        }


def shown(rows: Sequence[Row]) -> list[dict[str, str]]:
    """Returns a row for each scheduler, as in docs/results.md: accuracy and our gain on each script."""
    by_seed: dict[tuple[str, str], dict[int, float]] = {}
    for row in rows:
        by_seed.setdefault((row.script, row.scheduler), {})[row.seed] = row.accuracy
    table = []
    order = {OURS: -1} | {name: place for place, name in enumerate(MEANS)}
    for scheduler in sorted(
        dict.fromkeys(row.scheduler for row in rows), key=lambda name: order.get(name, len(order))
    ):
        cells = {"": MEANS.get(scheduler, f"`{scheduler}`")}
        for script in dict.fromkeys(row.script for row in rows):
            own, ours = by_seed[script, scheduler], by_seed[script, OURS]
            cells[f"`{script}.yaml`"] = f"{fmean(own.values()):.1%}"
            gain = Estimate.over_seeds([ours[seed] - accuracy for seed, accuracy in own.items()])
            cells[f"gain of `{OURS}` on {script}"] = "" if scheduler == OURS else gain.in_points()
        table.append(cells)
    return table


def _measured(case: Case, kept: Path | None) -> list[Row] | None:
    if kept is None or not (kept / case.name).is_file():
        return None
    rows = [
        Row(**{**row, "back_s": tuple(row["back_s"])})
        for row in json.loads((kept / case.name).read_text(encoding="utf-8"))
    ]
    return rows if {row.scheduler for row in rows} >= set(case.schedulers) else None


def main(
    seeds: Annotated[str, typer.Option(help="Seeds, by commas.")] = ",".join(map(str, FIGURE_SEEDS)),
    fleet: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Fleet file; may be repeated.")
    ] = None,
    schedulers: Annotated[str, typer.Option(help="Schedulers, by commas.")] = ",".join(SCHEDULERS),
    jobs: Jobs = 1,
    kept: Annotated[Path | None, typer.Option(help="Folder of what was measured before.")] = None,
    out: Out = RESULTS,
    json_to: Json = None,
) -> None:
    """Measure gains over not retraining, over uniform shares and over the paper's search."""
    cases = [
        Case(file, seed, tuple(schedulers.split(",")))
        for seed in parse_integers(seeds)
        for file in (fleet or map(shipped_path, SCRIPTS))
    ]
    known = {case: _measured(case, kept) for case in cases}
    missing = [case for case in cases if known[case] is None]
    with open_output(json_to) as channel:
        for case, rows in zip(missing, run_cases(measure, missing, jobs, channel.console), strict=True):
            known[case] = rows
            if kept is not None:
                kept.mkdir(parents=True, exist_ok=True)
                write_text_atomic(
                    kept / case.name, json.dumps([asdict(row) for row in rows], indent=1) + "\n"
                )
        every = [row for case in cases for row in known[case] or ()]
        title = "mean accuracy, our gain in points (95% interval over seeds), seconds until back"
        print_rows(channel.console, title, list(summary_rows(every)))
        # With more digits than a table has, so that gains follow from these rows.
        told = [
            {**asdict(row), "accuracy": f"{row.accuracy:.6f}", "back_s": " ".join(map(str, row.back_s))}
            for row in every
        ]
        out.mkdir(parents=True, exist_ok=True)
        write_text_atomic(out / "gains.csv", as_csv(told))
        write_text_atomic(out / "gains_paper.csv", as_csv(shown(every)))
        channel.write_json({"rows": [asdict(row) for row in every]})


if __name__ == "__main__":
    run(main, "python experiments/gains.py")
