"""Quality of the micro-profiler's estimates against the true outcome of every γ (paper §6.4, Figure 11a).

    python experiments/profiler_worth.py                 (windows of 21 s, one seed)
    python experiments/profiler_worth.py --window 200    (the paper's windows, one seed)
    python experiments/profiler_worth.py --full          (both, three seeds)

Recording goes through the default fleet's streets (others for each seed) window by window: a sample is
labelled, and in every second window of a stream (every fourth of the long ones), different ones for each
seed, every γ is trained to its end and tested on the unlabelled objects of the next window. The truth is the
accuracy of the epoch that would serve. Recorded cases are stored in ``runs/profiler_worth`` (0.3 GB a seed,
nearly all of it models) and reused, so that a trial or an estimator can be changed without training. Then
each case is micro-profiled.

``--window 200`` stretches the fleet's script to the paper's windows: the same cameras and changes, later and
slower in proportion, with the same traffic. So a window shows ten times as many objects.

Four ways to estimate are compared. ``ekya`` is the default. ``paper`` is the plain version (`profiler:
paper` in the fleet file): five epochs on a tenth of the labels for every family, and Optimus' curve through
them. ``exhaustive`` trains every γ to its end and takes its accuracy on the unlabelled objects of the
labelled window: its error is the change until the next window, and the objects that appear in it.
``constant`` always estimates the median of all truths, which is not available beforehand. Each way is
evaluated on all estimates, and separately on those of the models that a run would micro-profile
(``planning.profiling.pruning.in_need``): "in need".

``label_error`` is an error that no profiler avoids: the difference between the accuracy of the model that
*already serves*, measured on all labels, and its accuracy in the window that follows. Nothing is
predicted there.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from city_windows import one_thread
from numpy.typing import NDArray
from profiler_cases import Recorded, is_whole, load_cases, profile_case, save_cases
from profiler_truths import cases, stretched
from recipe import (
    RESULTS,
    Full,
    Json,
    Out,
    as_csv,
    draw_parts,
    legend,
    name_axes,
    new_figure,
    run,
    table_of_rows,
)
from rich.console import Console
from rich.logging import RichHandler
from scipy.stats import spearmanr

from ekya.cli.output import open_output
from ekya.config.fleet_file import FleetConfig
from ekya.config.fleet_reading import load_fleet
from ekya.core.profile import FamilyCurve, Profiler
from ekya.core.view import RetrainOption
from ekya.models.golden.golden_model import open_golden
from ekya.pipeline.costs import load_card
from ekya.pipeline.discover_classes import fleet_classes
from ekya.planning.profiling.estimate import estimate_options
from ekya.system.files import atomic_path, write_text_atomic

ROOT = Path(__file__).resolve().parents[1]

SEEDS = 3
"""Number of seeds in the full recipe."""

LONG_S = 200.0
"""Length of the paper's windows, in seconds."""

IN_TURN, LONG_IN_TURN = 2, 4
"""Every γ is trained in every second window of a stream, and in every fourth of the paper's length."""

SPREAD = 0.05
"""γ are ranked where the truths of a window spread over more than this."""

WITHIN_80 = 1.2816
"""Standard deviations on either side that hold 80%."""

WANTED = {
    "median_error": "<= 0.03",
    "spearman": ">= 0.7",
    "regret": "<= 0.01",
    "largest": "<= 1",
    "cost": "<= 1%",
    "duration_error": "<= 10%",
    "within_80": "70-90%",
}

ELSEWHERE = {"paper's own figure": 0.058, "public implementation's log": 0.059}
"""Median absolute errors: paper §6.4, and the 936 predictions of the public implementation's own log."""

log = logging.getLogger("profiler_worth")


Estimates = Callable[[Recorded], tuple[RetrainOption, ...]]
"""Estimates of a way for each γ, sorted by γ."""


def by_ekya(row: Recorded) -> tuple[RetrainOption, ...]:
    """Estimates with the default estimator on the micro-profiler's curves."""
    return _options(row, row.curves, Profiler.EKYA)


def by_the_paper(row: Recorded) -> tuple[RetrainOption, ...]:
    """Estimates with the plain estimator on the plain curves."""
    return _options(row, row.plain_curves, Profiler.PAPER)


def _options(row: Recorded, curves: Sequence[FamilyCurve], profiler: Profiler) -> tuple[RetrainOption, ...]:
    configs = [given.config for given in row.given]
    return estimate_options(
        curves, configs, row.training_crops, validation_crops=row.validation_crops, profiler=profiler
    )


def by_training_all(row: Recorded) -> tuple[RetrainOption, ...]:
    """Returns the accuracy of every γ on the unlabelled objects of the labelled window."""
    return tuple(
        RetrainOption(given.config, given.here, given.gpu_s)
        for given in sorted(row.given, key=lambda given: given.config)
    )


def by_a_constant(rows: Sequence[Recorded]) -> Estimates:
    """Estimates the median of all truths, for every γ."""
    middle = float(np.median([given.served for row in rows for given in row.given]))
    return lambda row: tuple(
        RetrainOption(given.config, middle, given.gpu_s)
        for given in sorted(row.given, key=lambda given: given.config)
    )


@dataclass(frozen=True, slots=True)
class Worth:
    """Quality of estimates.

    Attributes:
        fleet: name of the fleet.
        way: way to estimate.
        counted: "all" streams and windows; those "in need"; those where nothing changes in the window that
            follows, "steady"; those of a seed.
        estimates: number of estimates.
        median_error, mean_bias: of accuracy; absolute, and estimated less true.
        label_error: median error of the serving model's own accuracy, measured on the most labels.
        spearman, ranked: mean rank correlation within stream and window, over those that are spread.
        regret: mean true loss of taking the γ with the highest estimate; the cheapest of equals.
        largest: the highest estimate.
        cost: GPU-seconds of profiling as a part of those of training every γ; None where nothing is profiled.
        duration_error: median relative error of the GPU-seconds; None where nothing is profiled.
        within_80: part of the truths in the 80% intervals; None where none are given.
    """

    fleet: str
    way: str
    counted: str
    estimates: int
    median_error: float
    mean_bias: float
    label_error: float
    spearman: float
    ranked: int
    regret: float
    largest: float
    cost: float | None
    duration_error: float | None
    within_80: float | None


def worth(
    way: str, counted: str, rows: Sequence[Recorded], promised: Estimates, spent: Sequence[float]
) -> tuple[Worth, NDArray[np.float64]]:
    """Compares estimates with truths; also returns the single errors of accuracy."""
    misses, labels, ranks, regrets, durations, held, largest = [], [], [], [], [], [], 0.0
    for row in rows:
        asked = promised(row)
        given = {outcome.config: outcome for outcome in row.given}
        truth = np.array([given[option.config].served for option in asked])
        took = np.array([given[option.config].gpu_s for option in asked])
        told = np.array([option.accuracy_after for option in asked])
        sds = np.array([option.accuracy_sd for option in asked])
        misses += list(told - truth)
        durations += list(np.abs(np.array([option.gpu_s for option in asked]) / took - 1.0))
        labels.append(abs(_on_most_labels(row) - row.before))
        best = max(asked, key=lambda option: (round(option.accuracy_after, 9), -option.gpu_s))
        regrets.append(float(truth.max() - given[best.config].served))
        largest = max(largest, float(told.max()))
        if sds.any():
            held += list(np.abs(told - truth) <= WITHIN_80 * sds)
        if np.ptp(truth) > SPREAD:
            ranks.append(float(spearmanr(told, truth).statistic) if np.ptp(told) > 0 else 0.0)
    exhaustive = sum(outcome.gpu_s for row in rows for outcome in row.given)
    errors = np.array(misses)
    figures = Worth(
        fleet=rows[0].fleet,
        way=way,
        counted=counted,
        estimates=len(misses),
        median_error=float(np.median(np.abs(errors))),
        mean_bias=float(np.mean(errors)),
        label_error=float(np.median(labels)),
        spearman=float(np.mean(ranks)) if ranks else 0.0,
        ranked=len(ranks),
        regret=float(np.mean(regrets)),
        largest=largest,
        cost=sum(spent) / exhaustive if spent else None,
        duration_error=float(np.median(durations)) if spent else None,
        within_80=float(np.mean(held)) if held else None,
    )
    return figures, errors


def _on_most_labels(row: Recorded) -> float:
    """Returns the accuracy of the serving model on the most labels."""
    on_all = [curve for curve in row.curves if curve.accuracies and curve.validation_crops is not None]
    return on_all[0].accuracies[0] if on_all else row.serving_accuracy


def compare(rows: Sequence[Recorded]) -> tuple[list[Worth], dict[str, NDArray[np.float64]]]:
    """Evaluates all ways on all rows of a fleet and on parts; also returns each way's errors on all rows."""
    ways: dict[str, tuple[Estimates, Callable[[Recorded], float] | None]] = {
        "ekya": (by_ekya, lambda row: row.trial_gpu_s),
        "paper": (by_the_paper, lambda row: row.plain_gpu_s),
        "exhaustive": (by_training_all, None),
        "constant": (by_a_constant(rows), None),
    }
    parts = {
        "all": rows,
        "in need": [row for row in rows if row.in_need],
        "steady": [row for row in rows if row.steady],
        **{f"seed {seed}": [row for row in rows if row.seed == seed] for seed in range(SEEDS)},
    }
    found, errors = [], {}
    for way, (promised, price) in ways.items():
        for counted, of in parts.items():
            if of:
                spent = [price(row) for row in of] if price else []
                figures, misses = worth(way, counted, of, promised, spent)
                found.append(figures)
                if counted == "all":
                    errors[way] = misses
    return found, errors


def show(console: Console, found: Sequence[Worth]) -> None:
    """Prints a table for each way, with a column for each part."""
    for way in dict.fromkeys(of.way for of in found):
        told = [of for of in found if of.way == way]
        rows = [
            {
                "": key,
                "wanted": WANTED.get(key, ""),
                **{of.counted: _shown(key, getattr(of, key)) for of in told},
            }
            for key in list(asdict(told[0]))[3:]
        ]
        console.print(table_of_rows(f"{told[0].fleet}: {way}", rows, {}))


def _shown(key: str, value: float | int | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, int):
        return str(value)
    return f"{100 * value:.2f}%" if key in ("cost", "duration_error", "within_80") else f"{value:.3f}"


def draw(path: Path, errors: dict[str, dict[str, NDArray[np.float64]]]) -> None:
    """Draws the distribution of errors (Figure 11a), one panel for each fleet."""
    figure, axes = new_figure(len(errors), 1, 3.0, foot=1.2, sharey=True)
    for panel, (fleet, ways) in zip(axes[0], errors.items(), strict=True):
        for way, of in ways.items():
            draw_parts(panel, np.abs(of), label=way)
        for (name, median), marker in zip(ELSEWHERE.items(), "ox", strict=True):
            panel.plot(median, 0.5, marker, color="black", label=f"{name} (median)")
        panel.set_xlim(0, 0.6)
        name_axes(panel, fleet, "absolute error of the estimated accuracy")
    name_axes(axes[0][0], y="part of the estimates")
    legend(figure, axes[0][0])
    with atomic_path(path) as beside:
        figure.savefig(beside, format="png", dpi=110)


def compared(
    fleet: FleetConfig, seeds: int, in_turn: int, records: Path
) -> tuple[list[Worth], dict[str, NDArray[np.float64]]]:
    """Records missing cases of a fleet, micro-profiles all cases, and compares."""
    card, golden = load_card().of(fleet.edge.model), open_golden(fleet.golden, fleet_classes(fleet))
    rows = []
    for seed in range(seeds):
        folder = records / f"{fleet.name}-{seed}"
        if not is_whole(folder):
            for case in save_cases(folder, cases(fleet, card, seed, in_turn)):
                log.info("%s, seed %d, %s, window %d is recorded", fleet.name, seed, case.stream, case.window)
        rows += [profile_case(fleet, case, golden, card) for case in load_cases(folder)]
        log.info("%s, seed %d is micro-profiled", fleet.name, seed)
    return compare(rows)


def main(
    full: Full = False,
    fleet_file: Annotated[Path, typer.Option("--fleet", help="Whose streams.")] = ROOT
    / "datasets/synthetic_city/fleet.yaml",
    window_s: Annotated[
        float | None,
        typer.Option("--window", min=1, help="Stretch windows and changes to this many seconds."),
    ] = None,
    records: Annotated[Path, typer.Option(help="Folder of what was recorded.")] = ROOT
    / "runs/profiler_worth",
    out: Out = RESULTS,
    json_file: Json = None,
) -> None:
    """Evaluate the micro-profiler's estimates (Figure 11a)."""
    shown = RichHandler(console=Console(stderr=True), show_path=False)
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[shown])
    one_thread()
    fleet = load_fleet(fleet_file)
    found: list[Worth] = []
    errors = {}
    for length in (None, LONG_S) if full and window_s is None else (window_s,):
        of = fleet if length is None else stretched(fleet, length)
        of_fleet, errors[of.name] = compared(
            of, SEEDS if full else 1, IN_TURN if length is None else LONG_IN_TURN, records
        )
        found += of_fleet
        if json_file != "-":
            show(Console(), of_fleet)
    rows = [asdict(of) for of in found]
    with open_output(json_file) as told:
        told.write_json({"rows": rows})
    out.mkdir(parents=True, exist_ok=True)
    name = "profiler_worth" if full and window_s is None else "profiler_worth_quick"
    write_text_atomic(out / f"{name}.csv", as_csv(rows))
    draw(out / f"{name}.png", errors)


if __name__ == "__main__":
    run(main, "python experiments/profiler_worth.py", "python experiments/profiler_worth.py --full --json -")
