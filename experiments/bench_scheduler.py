"""Planning time of schedulers for a window, and its growth with the number of streams.

    python experiments/bench_scheduler.py
    python experiments/bench_scheduler.py --size 10x8 --scheduler ekya --json -
    python experiments/bench_scheduler.py --size 10x8 --early-part 0.7
    python experiments/bench_scheduler.py --csv experiments/results/bench_scheduler.csv

Windows of 200 s with 18 γ and 8 λ a stream, drawn as those of ``problems.yaml``: 10 streams on 8 GPUs, 100 on
32 and 1000 on 128, with shares and steals of a tenth of a GPU. The plan is that of a window's start, when
everything is undecided. Times are processor time, on one thread. Beside them are the value of the plans by
the objective and an upper bound of all plans (``experiments/optimum/bound.py``).

The paper's scheduler takes 9.4 s for 10 streams on 8 GPUs (§6.3); its public implementation took 15.8 s.
"""

import gc
import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Annotated

# Must be set before numpy is imported: times are of one core.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import typer
from optimum.bound import upper_bound
from optimum.problems import Shape, problem
from recipe import Json, publish_rows, run
from rich.console import Console
from rich.progress import Progress

from ekya.cli.command import open_output
from ekya.core.errors import UserError
from ekya.core.view import WindowView
from ekya.planning.schedulers.registry import make_scheduler
from ekya.planning.schedulers.scheduler import Scheduler
from ekya.simulation.trace.generator_parameters import SPEEDS, SpeedName

SIZES = ("10x8", "100x32", "1000x128")
SCHEDULERS = ("thief", "exact", "serial", "ekya")
FIRST_SEED = 5000
"""First seed of problems on which nothing was tuned."""

LEAST_S = 0.5
"""Each window is planned repeatedly for at least this long, so that short times are reliable."""


@dataclass(frozen=True, slots=True)
class Size:
    """Number of streams and of GPUs."""

    streams: int
    gpus: int


@dataclass(frozen=True, slots=True)
class Row:
    """One scheduler on windows of one size.

    Attributes:
        scheduler, streams, gpus: what was measured.
        configs: γ a stream.
        delta_milli: δ and Δ, in thousandths of a GPU.
        plan_ms: median time to plan a window.
        objective: value of the plans, a mean over the windows.
        bound: upper bound of all plans, a mean over the windows.
        growth: exponent of the time in the number of streams, from the size before; None for the first size.
    """

    scheduler: str
    streams: int
    gpus: int
    configs: int
    delta_milli: int
    plan_ms: float
    objective: float
    bound: float
    growth: float | None = None


def read_size(text: str) -> Size:
    """Parses a size such as ``10x8``. Raises UserError if it is none."""
    streams, _, gpus = text.partition("x")
    if not (streams.isdecimal() and gpus.isdecimal() and int(streams) and int(gpus)):
        raise UserError(f"--size: {text!r} is no size; write streams and GPUs as 10x8")
    return Size(int(streams), int(gpus))


def timed(scheduler: Scheduler, view: WindowView, least: int) -> tuple[list[float], float]:
    """Returns the seconds of every planning, and the plan's value."""
    worth = scheduler.plan(view).expected_accuracy
    seconds: list[float] = []
    gc.collect()
    while len(seconds) < least or (sum(seconds) < LEAST_S and len(seconds) < 20 * least):
        began_s = time.process_time()
        scheduler.plan(view)
        seconds.append(time.process_time() - began_s)
    return seconds, worth


def measured(names: Sequence[str], size: Size, views: Sequence[WindowView], repeats: int) -> Iterator[Row]:
    """Yields a row for each scheduler."""
    bound = fmean(upper_bound(view) for view in views)
    for name in names:
        scheduler = make_scheduler(name)
        results = [timed(scheduler, view, repeats) for view in views]
        yield Row(
            scheduler=name,
            streams=size.streams,
            gpus=size.gpus,
            configs=max(len(stream.retrain_options) for view in views for stream in view.streams),
            delta_milli=views[0].steal_milli,
            plan_ms=1000 * median(one for seconds, _ in results for one in seconds),
            objective=fmean(worth for _, worth in results),
            bound=bound,
        )


def with_growth(rows: Sequence[Row]) -> list[Row]:
    """Returns the rows sorted by size, with the growth of time from the size before."""
    grown: list[Row] = []
    for row in sorted(rows, key=lambda row: row.streams):
        smaller = [one for one in grown if one.scheduler == row.scheduler and one.streams < row.streams]
        growth = None
        if smaller:
            times = row.plan_ms / smaller[-1].plan_ms
            growth = math.log(times) / math.log(row.streams / smaller[-1].streams)
        grown.append(replace(row, growth=growth))
    return grown


def main(
    size: Annotated[
        list[str] | None,
        typer.Option(metavar="STREAMSxGPUS", help="As often as needed; all three if not named."),
    ] = None,
    scheduler: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help=f"As often as needed; {', '.join(SCHEDULERS)} if not named."),
    ] = None,
    delta_milli: Annotated[
        int, typer.Option(min=1, max=1000, help="δ and Δ, in thousandths of a GPU.")
    ] = 100,
    speed: Annotated[
        str, typer.Option(help=f"Speed curve of retrainings: {' or '.join(SPEEDS)}.")
    ] = "linear",
    early_part: Annotated[
        float,
        typer.Option(
            min=0.0, max=0.99, help="Part of its gain that each γ serves while it trains, by its checkpoints."
        ),
    ] = 0.0,
    windows: Annotated[int, typer.Option(min=1, help="Windows of each size.")] = 3,
    repeats: Annotated[int, typer.Option(min=1, help="Times that each is planned, at least.")] = 3,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the rows as CSV.")] = None,
    json_to: Json = None,
) -> None:
    """Time how long schedulers take to plan windows of three sizes."""
    curve = read_speed(speed)
    sizes = sorted((read_size(text) for text in size or SIZES), key=lambda one: one.streams)
    names = scheduler or SCHEDULERS
    for name in names:
        make_scheduler(name)
    rows: list[Row] = []
    with open_output(json_to) as ready:
        with Progress(
            console=Console(stderr=True), transient=True, disable=not ready.console.is_terminal
        ) as progress:
            task = progress.add_task("", total=len(sizes) * (windows + len(names)))
            for one in sizes:
                views = []
                for seed in range(FIRST_SEED, FIRST_SEED + windows):
                    progress.update(task, description=f"{one.streams} streams: drawing", advance=1)
                    view = problem(seed, one.streams, one.gpus, curve, shape_of(delta_milli))
                    views.append(rising(view, early_part))
                progress.update(task, description=f"{one.streams} streams: planning")
                for row in measured(names, one, views, repeats):
                    rows.append(row)
                    progress.update(task, description=f"{one.streams} streams: {row.scheduler}", advance=1)
        rows = with_growth(rows)
        forms = {"plan_ms": ".1f", "growth": ".2f", "objective": ".4f", "bound": ".4f"}
        publish_rows(ready, "Planning a window on one core", rows, csv, forms)


def read_speed(text: str) -> SpeedName:
    """Returns the curve of that name. Raises UserError if there is none."""
    for name in SPEEDS:
        if name == text:
            return name
    raise UserError(f"--speed: there is no {text!r}; choose one of {', '.join(SPEEDS)}")


def shape_of(delta_milli: int) -> Shape:
    """Returns a shape with δ equal to Δ, so that the dynamic programme and the thief use equal steps."""
    return Shape(quantum_milli=delta_milli, steal_milli=delta_milli)


def rising(view: WindowView, early_part: float) -> WindowView:
    """Returns the view with checkpoints that bring every γ this part of its gain during training."""
    streams = tuple(
        replace(
            stream,
            retrain_options=tuple(replace(one, early_part=early_part) for one in stream.retrain_options),
        )
        for stream in view.streams
    )
    return replace(view, streams=streams)


if __name__ == "__main__":
    run(
        main,
        "python experiments/bench_scheduler.py",
        "python experiments/bench_scheduler.py --size 10x8 --scheduler ekya --json -",
        "python experiments/bench_scheduler.py --size 10x8 --early-part 0.7",
    )
