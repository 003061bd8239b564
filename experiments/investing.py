"""Accuracy of `ekya` beside that of a fleet that never retrains, by GPUs: whether preparing ever costs.

    python experiments/investing.py
    python experiments/investing.py --trace city.parquet --trace video.parquet

Labels, trials and retrainings take from inference, most where GPUs are scarce. Generated traces are calm
here: short windows that show few objects, good base models, little drift. Rules were chosen on
``TUNING_SEEDS``, on the recorded traces and on seeds 0 to 2 of the traces of Figure 7; figures are of
``FIGURE_SEEDS``.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from played import EKYA, NO_RETRAIN, Data, Who, conditions, draw_schedulers, generated, play, recorded
from recipe import (
    RESULTS,
    Beside,
    Finding,
    Json,
    Out,
    Traces,
    accuracy_axis,
    channel,
    legend,
    new_figure,
    points,
    run,
)

from ekya.results.report.themes import LIGHT
from ekya.simulation.trace.generator_parameters import DEFAULT_PARAMETERS

TUNING_SEEDS, FIGURE_SEEDS = (11, 12, 13, 111, 112, 113, 114, 115), (121, 122, 123, 124, 125)

STREAMS, WINDOWS = 6, 8

GPUS_PER_STREAM = (0.0875, 0.1, 0.1125, 0.125, 0.15, 0.175, 0.2, 0.25, 0.3, 0.4, 0.8)

CALM = replace(
    DEFAULT_PARAMETERS,
    window_s=20.0,
    dearest_gpu_s=(3.0, 10.0),
    crops=80,
    objects=15,
    labelling_gpu_s=0.16,
    inference_profiling_gpu_s=0.25,
    base_accuracy=(0.75, 0.95),
    best_accuracy=(0.85, 0.95),
    drift=(0.1, 0.5),
    still_part=0.5,
)
"""As in the recorded city: what a window of 20 s shows and costs, and models that lose little."""


def rows_of(data: Data, step: Callable[[], None]) -> list[dict[str, Any]]:
    """Plays both schedulers on every number of GPUs; rows hold the mean and the least of all traces."""
    rows = []
    for per_stream in GPUS_PER_STREAM:
        under = conditions(round(per_stream * data.streams, 3))
        ekya, no_retrain = (play(data, Who(name), under).by_trace for name in (EKYA, NO_RETRAIN))
        gains = [one - other for one, other in zip(ekya, no_retrain, strict=True)]
        rows.append(
            {
                "data": data.name,
                "gpus_per_stream": per_stream,
                "traces": len(gains),
                "ekya": fmean(ekya),
                "no_retrain": fmean(no_retrain),
                "gain": fmean(gains),
                "least_gain": min(gains),
            }
        )
        step()
    return rows


def found(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> Finding:
    """Returns the table and the figure."""
    least = {name: _least(rows, name) for name in names}
    beside = [
        Beside(
            f"{per_stream:g} GPUs a stream",
            "",
            {row["data"]: points(row["gain"]) for row in rows if row["gpus_per_stream"] == per_stream},
        )
        for per_stream in GPUS_PER_STREAM
    ]
    beside.append(
        Beside("least of any trace", "", {name: points(least[name]["least_gain"]) for name in names}),
    )
    beside.append(
        Beside("at GPUs a stream", "", {name: f"{least[name]['gpus_per_stream']:g}" for name in names})
    )
    return Finding(
        name="investing",
        title="Accuracy of ekya above no-retrain, by GPUs a stream",
        rows=rows,
        beside=beside,
        why="Where models lose little or inference needs all GPUs, only labels tell that nothing is gained.",
        figure=_drawn(rows, names),
    )


def _drawn(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> Figure:
    figure, axes = new_figure(len(names), 1, 3.0, sharey=True)
    for panel, name in zip(axes[0], names, strict=True):
        own = [row for row in rows if row["data"] == name]
        lines = [
            {"gpus_per_stream": row["gpus_per_stream"], "scheduler": who, "accuracy": row[key]}
            for row in own
            for who, key in ((EKYA, "ekya"), (NO_RETRAIN, "no_retrain"))
        ]
        draw_schedulers(panel, lines, "gpus_per_stream")
        panel.set_title(name, fontsize=10, loc="left", color=LIGHT.ink)
        panel.set_xscale("log", base=2)
        panel.xaxis.set_major_locator(FixedLocator((0.1, 0.2, 0.4, 0.8)))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        panel.set_xlabel("GPUs a stream", fontsize=9, color=LIGHT.ink)
    accuracy_axis(axes[0][0])
    legend(figure, axes[0][0])
    return figure


def _least(rows: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    return min((row for row in rows if row["data"] == name), key=lambda row: float(row["least_gain"]))


def main(trace: Traces = None, json_to: Json = None, out: Out = RESULTS) -> None:
    """Play ekya and no-retrain on few and many GPUs."""
    with channel(json_to, out) as tell:
        every = [generated(STREAMS, WINDOWS, FIGURE_SEEDS, CALM), *recorded(trace)]
        with tell.steps("Investing", len(every) * len(GPUS_PER_STREAM)) as step:
            rows = [row for data in every for row in rows_of(data, step)]
        tell.publish(found(rows, [data.name for data in every]))


if __name__ == "__main__":
    run(
        main,
        "python experiments/investing.py",
        "python experiments/investing.py --trace city.parquet --trace video.parquet",
    )
