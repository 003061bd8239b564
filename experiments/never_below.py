"""A scheduler beside the strongest simple rule, `thief` and the truth, over factors that may turn the order.

    python experiments/never_below.py
    python experiments/never_below.py --scheduler thief --gpus 1,16 --drift slow,fast
    python experiments/never_below.py --seeds tuning --jobs 2 --csv never_below.csv

Each cell is a number of streams and GPUs, a Γ and a drift; all schedulers play the same generated traces
there, one of each seed, under the same conditions. The rule is that member of ``RULES`` which is best in the
cell's mean: known only afterwards, which favours it. Differences are paired by seed.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Annotated

# Must be set before numpy is imported: each case uses one thread.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import typer
from cases import Jobs, run_cases
from estimate import Estimate
from played import RULES
from recipe import Json, publish_rows, run

from ekya.cli.command import open_output
from ekya.cli.options import parse_gpu_counts, parse_integers
from ekya.core.errors import UserError
from ekya.planning.schedulers.registry import make_scheduler, preset_of
from ekya.simulation.trace.generate import generate_trace
from ekya.simulation.trace.generator_parameters import DEFAULT_PARAMETERS, FamilyShape, GeneratorParameters
from ekya.simulation.trace.simulate import Conditions, simulate

TUNING_SEEDS = (71, 72, 73, 74)
"""Settings of schedulers are chosen on these."""

FIGURE_SEEDS = (301, 302, 303, 304, 305, 306, 307, 308)
"""Figures are of these, which were named before anything was played on them."""

BESIDE = ("thief", "oracle", "no-retrain")

WINDOWS = 10

GAMMAS: Mapping[str, GeneratorParameters] = {
    "large": DEFAULT_PARAMETERS,
    "small": replace(DEFAULT_PARAMETERS, epochs=(5, 15), data_fractions=(1.0,)),
    "five": replace(
        DEFAULT_PARAMETERS,
        families=(
            *DEFAULT_PARAMETERS.families,
            FamilyShape(0, 0, 16, 0.9, (0.7, 0.9), (0.2, 1.0)),
            FamilyShape(0, 64, 64, 0.6, (0.8, 0.95), (0.8, 3.0)),
            FamilyShape(2, 0, 16, 6.9, (0.95, 1.0), (1.8, 5.0)),
            FamilyShape(2, 64, 64, 4.5, (1.0, 1.0), (5.0, 15.0)),
        ),
    ),
}
"""Γ by name: 18 γ, 4, or 54 in which head width and batch size vary as well, as in the paper (§3.1)."""

DRIFTS = {"usual": (0.3, 1.2), "slow": (0.1, 0.4), "fast": (0.9, 2.0)}
"""Bounds of the drift of streams, by name; see ``GeneratorParameters.drift``."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Factors of a cell."""

    streams: int
    gamma: str
    drift: str
    gpus: float


@dataclass(frozen=True, slots=True)
class Case:
    """One scheduler in one cell with one seed."""

    cell: Cell
    seed: int
    scheduler: str


@dataclass(frozen=True, slots=True)
class Row:
    """One cell: mean accuracies in percent, and paired differences in points with their intervals.

    Attributes:
        rule: the best of ``RULES`` in this cell.
        above, above_thief: the scheduler less the rule, and less `thief`.
    """

    streams: int
    gamma: str
    drift: str
    gpus: float
    accuracy: float
    rule: str
    above: float
    above_low: float | None
    above_high: float | None
    above_thief: float
    thief_low: float | None
    thief_high: float | None
    below_oracle: float
    above_no_retrain: float


def play_case(case: Case) -> float:
    """Returns the mean accuracy of a case; everything but the decision is the same for all schedulers."""
    cell = case.cell
    parameters = replace(GAMMAS[cell.gamma], drift=DRIFTS[cell.drift])
    trace = generate_trace(case.seed, cell.streams, WINDOWS, parameters)
    return simulate(trace, make_scheduler(case.scheduler), Conditions(cell.gpus)).mean_accuracy


def row_of(cell: Cell, scheduler: str, reached: Mapping[str, Sequence[float]]) -> Row:
    """Returns the row of a cell from the accuracies of all schedulers, one for each seed in one order."""
    rule = max(RULES, key=lambda name: fmean(reached[name]))

    def above(other: str) -> Estimate:
        return Estimate.over_seeds(
            [100 * (a - b) for a, b in zip(reached[scheduler], reached[other], strict=True)]
        )

    lead, over_thief = above(rule), above("thief")
    return Row(
        cell.streams,
        cell.gamma,
        cell.drift,
        cell.gpus,
        100 * fmean(reached[scheduler]),
        rule,
        lead.mean,
        lead.low,
        lead.high,
        over_thief.mean,
        over_thief.low,
        over_thief.high,
        -above("oracle").mean,
        above("no-retrain").mean,
    )


def rows_of(
    cells: Sequence[Cell], scheduler: str, seeds: Sequence[int], jobs: int, console: object
) -> Iterator[Row]:
    """Plays all cells and yields their rows, that with the lowest lead over its rule first."""
    players = list(dict.fromkeys((scheduler, *RULES, *BESIDE)))
    cases = [Case(cell, seed, player) for cell, player, seed in product(cells, players, seeds)]
    found = dict(zip(cases, run_cases(play_case, cases, jobs, console), strict=True))
    rows = [
        row_of(
            cell,
            scheduler,
            {player: [found[Case(cell, seed, player)] for seed in seeds] for player in players},
        )
        for cell in cells
    ]
    yield from sorted(rows, key=lambda row: row.above)


def chosen(option: str, text: str, known: Mapping[str, object]) -> list[str]:
    """Returns the names in a list with commas; an unknown one is an error of the user."""
    names = text.split(",")
    for name in names:
        if name not in known:
            raise UserError(f"{option} {name}: choose from {', '.join(known)}")
    return names


def main(
    scheduler: Annotated[str, typer.Option(metavar="NAME", help="What is compared with the rules.")] = "ekya",
    gpus: Annotated[str, typer.Option(metavar="N,...", help="Numbers of GPUs.")] = "1,2,4,8,16",
    streams: Annotated[str, typer.Option(metavar="N,...", help="Numbers of streams.")] = "10",
    gamma: Annotated[str, typer.Option(metavar="NAME,...", help="Γ: large, small, five.")] = "large",
    drift: Annotated[str, typer.Option(metavar="NAME,...", help="usual, slow, fast.")] = "usual",
    seeds: Annotated[
        str, typer.Option(metavar="N,...", help="One trace of each; or tuning, figure.")
    ] = "figure",
    jobs: Jobs = 1,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the rows as CSV.")] = None,
    json_to: Json = None,
) -> None:
    """Compare a scheduler with the best simple rule in every cell of factors; the worst cell comes first."""
    if preset_of(scheduler) is not None:
        raise UserError(f"--scheduler {scheduler}: a preset changes the conditions; name a scheduler alone")
    make_scheduler(scheduler)
    cells = [
        Cell(count, of_gamma, of_drift, on)
        for count, of_gamma, of_drift, on in product(
            parse_integers(streams, "--streams"),
            chosen("--gamma", gamma, GAMMAS),
            chosen("--drift", drift, DRIFTS),
            parse_gpu_counts(gpus),
        )
    ]
    played = {"tuning": TUNING_SEEDS, "figure": FIGURE_SEEDS}.get(seeds) or parse_integers(seeds)
    with open_output(json_to) as channel:
        rows = list(rows_of(cells, scheduler, played, jobs, channel.console))
        title = f"{scheduler} and the best simple rule, points above it; seeds {seeds}"
        publish_rows(channel, title, rows, csv, {"above": "+.1f", "accuracy": ".1f"}, seeds=list(played))
        worst = rows[0]
        channel.print_text(
            f"Worst: {worst.above:+.1f} points beside {worst.rule}; "
            f"streams {worst.streams}, GPUs {worst.gpus:g}, Γ {worst.gamma}, drift {worst.drift}"
        )


if __name__ == "__main__":
    run(
        main,
        "python experiments/never_below.py --seeds tuning --jobs 2",
        "python experiments/never_below.py --scheduler thief --gpus 1,16 --drift slow,fast",
    )
