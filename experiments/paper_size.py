"""Ten cameras with the paper's windows, every γ really trained: all schedulers on 1 to 4 GPUs.

    python experiments/paper_size.py

The traces in ``experiments/traces/paper_size``, one of each seed in ``SEEDS``, which were fixed before any
result, were recorded in two core-hours each; one that is interrupted goes on with ``--resume``:

    ekya profile datasets/synthetic_city/ten_cameras.yaml --seed 41 --out ten_cameras-41.parquet

Runs that really train, on the fleet's own number of GPUs, are those of `gains.py`, which keeps them:

    python experiments/gains.py --fleet datasets/synthetic_city/ten_cameras.yaml --seeds 41,42,43 \\
        --schedulers ekya,paper,uniform,no-retrain --out runs/gains \\
        --kept experiments/traces/paper_size/emulated

The uniform baselines are the paper's four, with γ that were found on the traces themselves, which favours
them; each is played as in the paper, where a model serves when its retraining is done, and with checkpoints.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer
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
    TEN_CAMERAS,
    TEN_CAMERAS_EMULATED,
    THIEF,
    Data,
    Who,
    conditions,
    draw_schedulers,
    ours,
    paper_baselines,
    play,
)
from recipe import (
    RESULTS,
    Beside,
    Finding,
    Json,
    Out,
    accuracy_axis,
    channel,
    legend,
    new_figure,
    percent,
    run,
)

from ekya.cli.options import parse_gpu_counts
from ekya.cli.simulate import open_trace
from ekya.core.errors import UserError
from ekya.core.trace import Trace
from ekya.core.units import us_to_seconds
from ekya.results.report.themes import LIGHT

SEEDS = (41, 42, 43)
"""Seeds of the recordings."""

NAME = "ten cameras"
TRACED, EMULATED = "trace", "emulated"
WITH_CHECKPOINTS = " with checkpoints"
SHOWN = (EKYA, THIEF, PAPER, *PAPER_BASELINES, CHECKPOINTING, ORACLE, NO_RETRAIN)
"""Schedulers in the figure."""

OTHERS = ("serial", "exact", "fixed-res", "fixed-config", "reuse", ORACLE)
"""Schedulers that are in the CSV only."""


@dataclass(frozen=True, slots=True)
class Played:
    """Mean accuracy of a scheduler with one seed, over cameras and windows; on a trace from window 1 on."""

    world: str
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
        **{name: Who(name) for name in (NO_RETRAIN, *OTHERS)},
        **baselines,
        **{name + WITH_CHECKPOINTS: replace(who, checkpoints=True) for name, who in baselines.items()},
    }


def play_all(
    traces: dict[int, Trace], gpus: Sequence[float], step: Callable[[], None] = lambda: None
) -> Iterator[Played]:
    """Plays every scheduler over every trace on every number of GPUs."""
    schedulers = players(Data(NAME, tuple(traces.values()), next(iter(traces.values()))))
    for count in gpus:
        for name, who in schedulers.items():
            for seed, trace in traces.items():
                accuracy = play(Data(NAME, (trace,), trace), who, conditions(count, seed)).accuracy
                yield Played(TRACED, count, name, seed, accuracy)
                step()


def emulated_of(folder: Path, gpus: float) -> Iterator[Played]:
    """Yields the runs that `gains.py` kept.

    Raises:
        UserError: the folder has none.
    """
    files = sorted(folder.glob("*.json"))
    if not files:
        raise UserError(f"--emulated {folder}: it has no results; make them with gains.py --kept {folder}")
    for file in files:
        for row in json.loads(file.read_text(encoding="utf-8")):
            yield Played(EMULATED, gpus, row["scheduler"], row["seed"], row["accuracy"])


def gain(rows: Iterable[Played], other: str) -> Estimate:
    """Returns how far ``ekya`` is above another scheduler, seed by seed."""
    by_seed = {(row.scheduler, row.seed): row.accuracy for row in rows}
    seeds = [seed for name, seed in by_seed if name == other and (EKYA, seed) in by_seed]
    return Estimate.over_seeds([by_seed[EKYA, seed] - by_seed[other, seed] for seed in seeds])


def mean_of(rows: Iterable[Played], scheduler: str) -> float:
    """Returns a scheduler's mean over seeds."""
    return fmean(row.accuracy for row in rows if row.scheduler == scheduler)


def table_of(rows: Sequence[Played]) -> list[dict[str, Any]]:
    """Returns a row for each world, number of GPUs and scheduler, with 95% intervals over seeds."""
    table = []
    for (world, gpus), every in _by_place(rows):
        for scheduler in dict.fromkeys(row.scheduler for row in every):
            own = [row.accuracy for row in every if row.scheduler == scheduler]
            table.append(
                {
                    "world": world,
                    "gpus": gpus,
                    "scheduler": scheduler,
                    "seeds": len(own),
                    **_interval("accuracy", Estimate.over_seeds(own)),
                    **_interval("ekya_above", gain(every, scheduler)),
                }
            )
    return table


def beside_of(rows: Sequence[Played]) -> Iterator[Beside]:
    """Yields accuracy and gains of ``ekya`` at each number of GPUs."""
    for (world, gpus), every in _by_place(rows):
        where = f"{gpus:g} GPU{'' if gpus == 1 else 's'}" + (", emulated" if world == EMULATED else "")
        names = list(dict.fromkeys(row.scheduler for row in every))
        yield Beside(f"{where}: accuracy of {EKYA}", "", {NAME: percent(mean_of(every, EKYA))})
        for name in names:
            if name not in (EKYA, *OTHERS) and not name.startswith(PAPER_BASELINES):
                yield Beside(
                    f"{where}: {EKYA} above {name}, points", "", {NAME: gain(every, name).in_points()}
                )
        for kind, checkpoints in (("", False), (WITH_CHECKPOINTS, True)):
            own = [
                name
                for name in names
                if name.startswith(PAPER_BASELINES) and name.endswith(WITH_CHECKPOINTS) == checkpoints
            ]
            ranked = sorted(own, key=lambda name: mean_of(every, name))
            for which, name in zip(("best", "worst"), ranked[-1:] + ranked[:1], strict=False):
                told = f"{gain(every, name).in_points()}, {name.removesuffix(WITH_CHECKPOINTS)}"
                what = f"{where}: {EKYA} above the {which} uniform baseline{kind}, points"
                yield Beside(what, "", {NAME: told})


def _by_place(rows: Sequence[Played]) -> Iterator[tuple[tuple[str, float], list[Played]]]:
    """Yields rows of the same world and GPUs together; worlds and GPUs are in order."""
    for place, group in groupby(rows, lambda row: (row.world, row.gpus)):
        yield place, list(group)


def _interval(name: str, of: Estimate) -> dict[str, float | None]:
    return {name: of.mean, f"{name}_low": of.low, f"{name}_high": of.high}


def _drawn(rows: Sequence[dict[str, Any]], streams: int) -> Figure:
    figure, axes = new_figure(1, 1, 3.4)
    panel = axes[0][0]
    shown = [row for row in rows if row["world"] == TRACED and row["scheduler"] in SHOWN]
    draw_schedulers(panel, shown, "gpus")
    panel.set_xlabel(f"GPUs for {streams} cameras", fontsize=9, color=LIGHT.ink)
    panel.xaxis.set_major_locator(MultipleLocator(1))
    accuracy_axis(panel)
    legend(figure, panel, columns=4)
    return figure


def main(
    trace: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Recorded trace, one of each seed, instead of those shipped."),
    ] = None,
    gpus: Annotated[str, typer.Option(metavar="N,...", help="Numbers of GPUs.")] = "1,2,3,4",
    emulated: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Runs with training, as gains.py keeps them; shipped ones otherwise."
        ),
    ] = None,
    emulated_gpus: Annotated[float, typer.Option(metavar="N", help="Number of GPUs of these runs.")] = 2.0,
    out: Out = RESULTS,
    json_to: Json = None,
) -> None:
    """Play all schedulers over recordings of ten cameras, and name the best and the worst baseline."""
    counts, traces = sorted(parse_gpu_counts(gpus)), traces_of(trace or TEN_CAMERAS)
    first = next(iter(traces.values()))
    with channel(json_to, out) as tell:
        runs = len(counts) * len(traces) * len(players(Data(NAME, tuple(traces.values()), first)))
        with tell.steps("Ten cameras", runs) as step:
            rows = list(play_all(traces, counts, step))
        if emulated is not None or trace is None:
            rows += emulated_of(emulated or TEN_CAMERAS_EMULATED, emulated_gpus)
        table, streams = table_of(rows), len(first.streams)
        tell.publish(
            Finding(
                name="paper_size",
                title=f"{streams} cameras, windows of {us_to_seconds(first.window_us):g} s, every γ trained",
                rows=table,
                beside=list(beside_of(rows)),
                why=f"Mean over {len(traces)} seeds, in brackets the 95% interval. Baselines' γ are found on "
                "the traces that are played.",
                figure=_drawn(table, streams),
                more={"played": [asdict(row) for row in rows]},
            )
        )


if __name__ == "__main__":
    run(
        main,
        "python experiments/paper_size.py",
        "python experiments/paper_size.py --trace ten_cameras-41.parquet --gpus 2",
    )
