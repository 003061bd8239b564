"""Ten cameras with the paper's windows, every γ really trained: all schedulers on 1 to 4 GPUs.

The traces in ``experiments/traces/paper_size``, one of each seed in ``SEEDS``, which were fixed before any
result, were recorded in two core-hours each; one that is interrupted goes on with ``--resume``:

    ekya profile datasets/synthetic_city/ten_cameras.yaml --seed 41 --out ten_cameras-41.parquet

The uniform baselines are the paper's four, with γ that were found on the traces themselves, which favours
them; each is played as in the paper, where a model serves when its retraining is done, and with checkpoints.
`paper` has checkpoints as all others, and is played without them as well.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from estimate import Estimate
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator
from played import (
    CHECKPOINTING,
    EKYA,
    NO_RETRAIN,
    ORACLE,
    PAPER,
    PAPER_BASELINES,
    RULES,
    TEN_CAMERAS,
    THIEF,
    Data,
    Who,
    draw_schedulers,
    ours,
    paper_baselines,
    play,
)
from recipe import Beside, accuracy_axis, legend, name_axes, new_figure, percent
from recipe_table import Asked, FigureRecipe, Row, row_where, rows_where

from ekya.api.simulation import open_trace
from ekya.core.errors import UserError
from ekya.core.trace import Trace
from ekya.simulation.trace.simulate import Conditions

SEEDS = (41, 42, 43)
"""Seeds of the recordings."""

NAME = "ten cameras"
WITH_CHECKPOINTS, WITHOUT_CHECKPOINTS = " with checkpoints", " without checkpoints"
SHOWN = (EKYA, THIEF, PAPER, *PAPER_BASELINES, CHECKPOINTING, ORACLE, NO_RETRAIN)
"""Schedulers in the figure."""

OTHERS = ("serial", "exact", "fixed-res", "fixed-config", "reuse", ORACLE)
"""Schedulers that are in the CSV only."""


@dataclass(frozen=True, slots=True)
class Played:
    """Mean accuracy of a scheduler with one seed, over cameras and windows from window 1 on."""

    gpus: float
    scheduler: str
    seed: int
    accuracy: float


def seed_of(trace: Trace, path: Path) -> int:
    """Returns the seed with which a trace was recorded.

    Raises:
        UserError: the file does not say it.
    """
    words = trace.recorded.replace(",", " ").split()
    if words[:1] != ["seed"]:
        raise UserError(f"--trace {path}: it does not say with which seed it was recorded; record it again")
    return int(words[1])


def traces_of(paths: Sequence[Path]) -> dict[int, Trace]:
    """Returns the recordings by seed.

    Raises:
        UserError: two have the same seed, or they are not of the same fleet.
    """
    traces: dict[int, Trace] = {}
    for path in paths:
        trace = open_trace(path)
        seed = seed_of(trace, path)
        if seed in traces:
            raise UserError(f"--trace {path}: there is another trace with seed {seed}; name it once")
        for other in traces.values():
            if _fleet(trace) != _fleet(other):
                raise UserError(
                    f"--trace {path}: its cameras, windows or configurations are not those of {paths[0]}; "
                    "record both to the end, with the same fleet"
                )
        traces[seed] = trace
    return traces


def _fleet(trace: Trace) -> tuple[object, ...]:
    streams = [(stream.stream, len(stream.windows)) for stream in trace.streams]
    return trace.window_us, trace.retrain_configs, trace.inference_configs, streams


def players(data: Data) -> dict[str, Who]:
    """Returns all schedulers by name."""
    baselines = paper_baselines(data)
    return {
        **ours(data),
        PAPER + WITHOUT_CHECKPOINTS: Who(PAPER, checkpoints=False),
        **{name: Who(name) for name in (NO_RETRAIN, *OTHERS, *RULES)},
        **baselines,
        **{name + WITH_CHECKPOINTS: replace(who, checkpoints=True) for name, who in baselines.items()},
    }


def play_all(traces: dict[int, Trace], gpus: Sequence[float]) -> Iterator[Played]:
    """Plays every scheduler over every trace on every number of GPUs."""
    schedulers = players(Data(NAME, tuple(traces.values()), next(iter(traces.values()))))
    for count in gpus:
        for name, who in schedulers.items():
            for seed, trace in traces.items():
                accuracy = play(Data(NAME, (trace,), trace), who, Conditions(count, seed=seed)).accuracy
                yield Played(count, name, seed, accuracy)


def gain(rows: Iterable[Played], other: str) -> Estimate:
    """Returns how far ``ekya`` is above another scheduler, seed by seed."""
    by_seed = {(row.scheduler, row.seed): row.accuracy for row in rows}
    seeds = [seed for name, seed in by_seed if name == other and (EKYA, seed) in by_seed]
    return Estimate.over_seeds([by_seed[EKYA, seed] - by_seed[other, seed] for seed in seeds])


def table_of(rows: Sequence[Played]) -> list[Row]:
    """Returns a row for each number of GPUs and scheduler, with 95% intervals over seeds."""
    table = []
    for gpus, every in _by_gpus(rows):
        for scheduler in dict.fromkeys(row.scheduler for row in every):
            own = [row.accuracy for row in every if row.scheduler == scheduler]
            table.append(
                {
                    "gpus": gpus,
                    "scheduler": scheduler,
                    "seeds": len(own),
                    **_interval("accuracy", Estimate.over_seeds(own)),
                    **_interval("ekya_above", gain(every, scheduler)),
                }
            )
    return table


def beside_size(rows: Sequence[Row]) -> Iterator[Beside]:
    """Yields accuracy and gains of ``ekya`` at each number of GPUs."""

    def gain_of(row: Row) -> str:
        return Estimate(*(row[f"ekya_above{end}"] for end in ("", "_low", "_high"))).in_points()

    for gpus in dict.fromkeys(row["gpus"] for row in rows):
        every = rows_where(rows, gpus=gpus)
        where = f"{gpus:g} GPU{'' if gpus == 1 else 's'}"
        own = row_where(every, scheduler=EKYA)
        yield Beside(f"{where}: accuracy of {EKYA}", "", {NAME: percent(own["accuracy"])})
        for row in every:
            name = row["scheduler"]
            if name not in (EKYA, *OTHERS, *RULES) and not name.startswith(PAPER_BASELINES):
                yield Beside(f"{where}: {EKYA} above {name}, points", "", {NAME: gain_of(row)})
        rules = [row for row in every if row["scheduler"] in RULES]
        for row in sorted(rules, key=lambda row: float(row["accuracy"]))[-1:]:
            told = f"{gain_of(row)}, {row['scheduler']}"
            yield Beside(f"{where}: {EKYA} above the best rule of one line, points", "", {NAME: told})
        for kind, checkpoints in (("", False), (WITH_CHECKPOINTS, True)):
            ranked = sorted(
                (
                    row
                    for row in every
                    if row["scheduler"].startswith(PAPER_BASELINES)
                    and row["scheduler"].endswith(WITH_CHECKPOINTS) == checkpoints
                ),
                key=lambda row: float(row["accuracy"]),
            )
            for which, row in zip(("best", "worst"), ranked[-1:] + ranked[:1], strict=False):
                told = f"{gain_of(row)}, {row['scheduler'].removesuffix(WITH_CHECKPOINTS)}"
                what = f"{where}: {EKYA} above the {which} uniform baseline{kind}, points"
                yield Beside(what, "", {NAME: told})


def _by_gpus(rows: Sequence[Played]) -> Iterator[tuple[float, list[Played]]]:
    """Yields rows of the same number of GPUs together; they are in order."""
    for gpus, group in groupby(rows, lambda row: row.gpus):
        yield gpus, list(group)


def _interval(name: str, of: Estimate) -> dict[str, float | None]:
    return {name: of.mean, f"{name}_low": of.low, f"{name}_high": of.high}


def draw_size(rows: Sequence[Row]) -> Figure:
    """Draws schedulers over GPUs."""
    figure, axes = new_figure(1, 1, 3.4)
    panel = axes[0][0]
    shown = [row for row in rows if row["scheduler"] in SHOWN]
    draw_schedulers(panel, shown, "gpus")
    name_axes(panel, x="GPUs for all cameras")
    panel.xaxis.set_major_locator(MultipleLocator(1))
    accuracy_axis(panel)
    legend(figure, panel, columns=4)
    return figure


def play_size(asked: Asked) -> Iterator[Row]:
    """Plays all schedulers."""
    yield from table_of(
        list(play_all(traces_of(asked.traces or TEN_CAMERAS), asked.at or (1.0, 2.0, 3.0, 4.0)))
    )


PAPER_SIZE = FigureRecipe(
    "Ten cameras",
    "Ten cameras, windows of 200 s, every γ trained",
    play_size,
    beside_size,
    "Mean over the seeds, in brackets the 95% interval. Baselines' γ are found on the traces that are "
    "played.",
    draw_size,
    takes=("trace", "at"),
)
