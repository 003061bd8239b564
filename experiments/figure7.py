"""Ten streams on 1 to 16 GPUs: factor of GPUs that the uniform baseline needs to equal Ekya (Figure 7).

    python experiments/figure7.py
    python experiments/figure7.py --full --trace city.parquet

The paper plays ten streams on 1 to 16 GPUs and finds that Ekya on 4 does better than uniform on 16.
Recorded traces have other numbers of streams and get as many GPUs a stream. `paper` is the paper's Ekya,
`thief` its scheduler with our profiler and checkpoints, `ekya` ours, the default. The paper's baselines serve
a model when its retraining is done; each is also played with checkpoints. `ekya` is also played with labels
and profiles in one burst at each window's start (`preparation: {burst: true}`). `oracle` plans as ours does,
with the true profiles instead of estimates, and pays for no trial. What `ekya` gains over the best and the
worst baseline is a mean over five seeds with its 95% interval; a recorded trace is one.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from detect_gains import Estimate
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from played import (
    EKYA,
    IN_BURSTS,
    NO_RETRAIN,
    ORACLE,
    OURS,
    PAPER,
    PAPER_BASELINES,
    SEEDS,
    Data,
    Who,
    conditions,
    draw_schedulers,
    fewest_gpus,
    generated,
    ours,
    play,
    recorded,
    shown,
    uniform_baselines,
)
from recipe import (
    RESULTS,
    Beside,
    Finding,
    Full,
    Json,
    Out,
    Seed,
    Traces,
    accuracy_axis,
    channel,
    legend,
    new_figure,
    paper_line,
    percent,
    points,
    run,
)

from ekya.results.report.themes import LIGHT

GPUS_PER_STREAM = (0.1, 0.2, 0.4, 0.8, 1.6)
"""The paper's 1, 2, 4, 8 and 16 GPUs for ten streams."""

SAVING_AT = 0.4
"""GPUs a stream at which the paper compares `uniform` with Ekya."""

PAPER_ACCURACY = 0.78
"""Accuracy of Ekya with ten streams on 8 GPUs, Cityscapes (§6.5 names Figure 7a for it)."""


def players(data: Data) -> dict[str, Who]:
    """Returns the schedulers to play, ``ekya`` first."""
    uniform = uniform_baselines(data)
    return {
        **ours(data),
        IN_BURSTS: Who(EKYA, burst=True),
        **uniform,
        **{with_checkpoints(name): replace(who, checkpoints=True) for name, who in uniform.items()},
        ORACLE: Who(ORACLE),
        NO_RETRAIN: Who(NO_RETRAIN),
    }


def rows_of(data: Data, seed: int, step: Callable[[], None]) -> list[dict[str, Any]]:
    """Plays every scheduler on every number of GPUs; ``gain`` is what ``ekya`` gains over it."""
    rows = []
    for per_stream in GPUS_PER_STREAM:
        gpus = round(per_stream * data.streams, 2)
        ekya: tuple[float, ...] = ()
        for name, who in players(data).items():
            played = play(data, who, conditions(gpus, seed))
            ekya = ekya or played.by_trace
            gain = Estimate.of([own - other for own, other in zip(ekya, played.by_trace, strict=True)])
            rows.append(
                {
                    "data": data.name,
                    "streams": data.streams,
                    "gpus": gpus,
                    "gpus_per_stream": per_stream,
                    "scheduler": name,
                    "accuracy": played.accuracy,
                    "gain": gain.mean,
                    "low": gain.low,
                    "high": gain.high,
                }
            )
            step()
    return rows


def with_checkpoints(baseline: str) -> str:
    """Returns the name of a baseline that also serves checkpoints."""
    return f"{baseline} with checkpoints"


def over_uniform(
    rows: Sequence[dict[str, Any]], data: str, per_stream: float, checkpoints: bool, worst: bool
) -> str:
    """Formats what ``ekya`` gains over the best or the worst of the paper's baselines, and which it is."""
    names = [with_checkpoints(name) if checkpoints else name for name in PAPER_BASELINES]
    here = [row for row in rows if (row["data"], row["gpus_per_stream"]) == (data, per_stream)]
    own = sorted((row for row in here if row["scheduler"] in names), key=lambda row: float(row["gain"]))
    one = own[-1 if worst else 0]
    which = one["scheduler"].removeprefix("uniform (").removesuffix(" with checkpoints").removesuffix(")")
    return f"{Estimate(one['gain'], one['low'], one['high']).told()}, {which}"


def best_uniform(
    rows: Sequence[dict[str, Any]], data: str, checkpoints: bool = False
) -> list[tuple[float, float]]:
    """Returns the best of the paper's baselines by GPUs a stream."""
    names = [with_checkpoints(name) if checkpoints else name for name in PAPER_BASELINES]
    return [(each, max(at(rows, data, name, each) for name in names)) for each in GPUS_PER_STREAM]


def at(rows: Sequence[dict[str, Any]], data: str, scheduler: str, per_stream: float) -> float:
    """Returns the accuracy at one point of the figure."""
    return next(
        row["accuracy"]
        for row in rows
        if (row["data"], row["scheduler"], row["gpus_per_stream"]) == (data, scheduler, per_stream)
    )


def saving(
    rows: Sequence[dict[str, Any]], data: str, scheduler: str, uniform: Sequence[tuple[float, float]]
) -> str:
    """Returns the factor of GPUs with which ``uniform`` equals a scheduler."""
    needed = fewest_gpus(uniform, at(rows, data, scheduler, SAVING_AT))
    most = GPUS_PER_STREAM[-1] / SAVING_AT
    return f"more than {most:g}x" if needed is None else f"{needed / SAVING_AT:.1f}x"


def found(rows: list[dict[str, Any]], names: Sequence[str]) -> Finding:
    """Returns the table, the figure and the paper's numbers beside ours."""
    beside = []
    for scheduler in OURS:
        own = shown(rows, names, scheduler)
        beside += [
            Beside(
                f"GPUs that the best uniform needs to equal {scheduler} on 0.4 a stream",
                "4x or more" if scheduler == PAPER else "",
                {data: saving(rows, data, scheduler, best_uniform(rows, data)) for data in own},
            ),
            Beside(
                f"GPUs that the best uniform with checkpoints needs to equal {scheduler} on 0.4 a stream",
                "",
                {data: saving(rows, data, scheduler, best_uniform(rows, data, True)) for data in own},
            ),
            Beside(
                f"accuracy of {scheduler} on 0.8 GPUs a stream",
                f"{PAPER_ACCURACY:.0%}" if scheduler == PAPER else "",
                {data: percent(at(rows, data, scheduler, 0.8)) for data in own},
            ),
            Beside(
                f"{scheduler} above the best uniform, least and most",
                "",
                {data: " to ".join(map(points, _above(rows, data, scheduler))) for data in own},
            ),
        ]
    beside += [
        Beside(
            f"{per_stream:g} GPUs a stream: points of ekya above the {'worst' if worst else 'best'} uniform"
            f"{' with checkpoints' if checkpoints else ''}",
            "",
            {data: over_uniform(rows, data, per_stream, checkpoints, worst) for data in names},
        )
        for per_stream in GPUS_PER_STREAM
        for checkpoints, worst in product((False, True), repeat=2)
    ]
    return Finding(
        name="figure7",
        title="Figure 7: accuracy of ten streams (recorded: all there are) by GPUs",
        rows=rows,
        beside=beside,
        why="The paper does not say what its inference costs; recorded streams have a head-only γ that is"
        " nearly free, so uniform soon keeps up.",
        figure=_drawn(rows, names),
    )


def _above(rows: Sequence[dict[str, Any]], data: str, scheduler: str) -> tuple[float, float]:
    """Returns the smallest and the largest lead over the best uniform, over all numbers of GPUs."""
    above = [at(rows, data, scheduler, each) - best for each, best in best_uniform(rows, data)]
    return min(above), max(above)


def _drawn(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> Figure:
    figure, axes = new_figure(len(names), 1, 3.4, sharey=True)
    for panel, data in zip(axes[0], names, strict=True):
        draw_schedulers(panel, [row for row in rows if row["data"] == data], "gpus_per_stream")
        streams = next(row["streams"] for row in rows if row["data"] == data)
        panel.set_title(f"{data}, {streams} streams", fontsize=10, loc="left", color=LIGHT.ink)
        panel.set_xscale("log", base=2)
        panel.xaxis.set_major_locator(FixedLocator(GPUS_PER_STREAM))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.xaxis.set_major_formatter(
            FuncFormatter(lambda value, _, count=streams: f"{value:g} ({value * count:g})")
        )
        panel.set_xlabel("GPUs a stream (in all)", fontsize=9, color=LIGHT.ink)
    paper_line(axes[0][0], PAPER_ACCURACY, "paper, at 0.8")
    accuracy_axis(axes[0][0])
    legend(figure, axes[0][0], columns=4)
    return figure


def main(
    full: Full = False, trace: Traces = None, seed: Seed = 0, json_to: Json = None, out: Out = RESULTS
) -> None:
    """Play ten streams on 1 to 16 GPUs: Figure 7."""
    with channel(json_to, out) as tell:
        every = [generated(10, 10 if full else 5, range(seed, seed + SEEDS)), *recorded(trace)]
        runs = len(GPUS_PER_STREAM) * sum(len(players(data)) for data in every)
        with tell.steps("Figure 7", runs) as step:
            rows = [row for data in every for row in rows_of(data, seed, step)]
        tell.publish(found(rows, [data.name for data in every]))


if __name__ == "__main__":
    run(
        main,
        "python experiments/figure7.py",
        "python experiments/figure7.py --full --trace city.parquet --trace video.parquet",
    )
