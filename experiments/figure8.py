"""Ablation of Ekya's two halves: adaptive shares, and adaptive γ (Figure 8).

    python experiments/figure8.py
    python experiments/figure8.py --full --trace city.parquet

`fixed-res` has the uniform baseline's shares and picks γ; `fixed-config` has the uniform baseline's γ and
moves shares as the thief does. The paper plays ten streams on 4 GPUs; here are half and twice as many as
well, since it says that both halves count most where GPUs are scarce.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from detect_gains import Estimate
from matplotlib.figure import Figure
from played import (
    EKYA,
    PAPER_BASELINES,
    SEEDS,
    STYLES,
    THIEF,
    Data,
    Who,
    conditions,
    generated,
    play,
    recorded,
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
    run,
)

from ekya.results.report.themes import LIGHT

GPUS_PER_STREAM = (0.2, 0.4, 0.8)
FIXED_RES, FIXED_CONFIG = "fixed-res", "fixed-config"
UNIFORM = PAPER_BASELINES[2]


def players(data: Data) -> dict[str, Who]:
    """Returns Ekya whole, without one half, and without both."""
    uniform = uniform_baselines(data)[UNIFORM]
    gamma = uniform.spec.partition(":gamma=")[2]
    return {
        EKYA: Who(EKYA),
        THIEF: Who(THIEF),
        FIXED_RES: Who(f"{FIXED_RES}:inference=500"),
        FIXED_CONFIG: Who(f"{FIXED_CONFIG}:inference=500:gamma={gamma}"),
        UNIFORM: uniform,
    }


def rows_of(data: Data, seed: int, step: Callable[[], None]) -> list[dict[str, Any]]:
    """Plays every variant on every number of GPUs; ``gain`` is what it gains over `thief`."""
    rows = []
    for per_stream in GPUS_PER_STREAM:
        gpus = round(per_stream * data.streams, 2)
        played = {}
        for name, who in players(data).items():
            played[name] = play(data, who, conditions(gpus, seed))
            step()
        for name, one in played.items():
            gain = Estimate.of([a - b for a, b in zip(one.by_trace, played[THIEF].by_trace, strict=True)])
            rows.append(
                {
                    "data": data.name,
                    "gpus": gpus,
                    "gpus_per_stream": per_stream,
                    "scheduler": name,
                    "accuracy": one.accuracy,
                    "gain": gain.mean,
                    "low": gain.low,
                    "high": gain.high,
                }
            )
    return rows


def lost(rows: Sequence[dict[str, Any]], data: str, per_stream: float, without: str) -> str:
    """Formats the accuracy of a variant less that of the thief."""
    key = (data, per_stream, without)
    row = next(row for row in rows if (row["data"], row["gpus_per_stream"], row["scheduler"]) == key)
    return Estimate(row["gain"], row["low"], row["high"]).told()


def found(rows: list[dict[str, Any]], names: Sequence[str]) -> Finding:
    """Returns the table, the figure and the paper's numbers beside ours."""
    beside = [
        Beside(
            f"{what}, {per_stream:g} GPUs a stream: points",
            "a substantial loss" if per_stream == 0.4 else "",
            {data: lost(rows, data, per_stream, without) for data in names},
        )
        for what, without in (("without adaptive shares", FIXED_RES), ("without adaptive γ", FIXED_CONFIG))
        for per_stream in GPUS_PER_STREAM
    ]
    return Finding(
        name="figure8",
        title="Figure 8: Ekya with one half taken out",
        rows=rows,
        beside=beside,
        why="The paper draws its losses without numbers; shares count most where GPUs are scarce, as it "
        "says, and what γ count depends on how good the one that is fixed happens to be.",
        figure=_drawn(rows, names),
    )


def _drawn(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> Figure:
    figure, axes = new_figure(len(names), 1, 3.0, sharey=True)
    for panel, data in zip(axes[0], names, strict=True):
        own = [row for row in rows if row["data"] == data]
        schedulers = list(dict.fromkeys(row["scheduler"] for row in own))
        places = np.arange(len(GPUS_PER_STREAM))
        width = 0.8 / len(schedulers)
        for index, name in enumerate(schedulers):
            heights = [row["accuracy"] for row in own if row["scheduler"] == name]
            bars = panel.bar(
                places + (index - len(schedulers) / 2 + 0.5) * width,
                heights,
                width * 0.92,
                color=STYLES[name][0],
                label=name,
            )
            panel.bar_label(bars, [f"{100 * height:.0f}" for height in heights], fontsize=7.5, padding=1)
        panel.set_xticks(places, [f"{each:g}" for each in GPUS_PER_STREAM])
        panel.set_xlabel("GPUs a stream (paper: 0.4)", fontsize=9, color=LIGHT.ink)
        panel.set_title(data, fontsize=10, loc="left", color=LIGHT.ink)
        panel.grid(axis="x", visible=False)
    lowest = min(row["accuracy"] for row in rows)
    axes[0][0].set_ylim(max(0.0, lowest - 0.15), None)
    accuracy_axis(axes[0][0])
    legend(figure, axes[0][0])
    return figure


def main(
    full: Full = False, trace: Traces = None, seed: Seed = 0, json_to: Json = None, out: Out = RESULTS
) -> None:
    """Play ten streams with one half of Ekya removed: Figure 8."""
    with channel(json_to, out) as tell:
        drawn = generated(10, 10 if full else 5, range(seed, seed + SEEDS))
        every = [drawn, *recorded(trace)]
        with tell.steps("Figure 8", len(every) * len(GPUS_PER_STREAM) * 5) as step:
            rows = [row for data in every for row in rows_of(data, seed, step)]
        tell.publish(found(rows, [data.name for data in every]))


if __name__ == "__main__":
    run(main, "python experiments/figure8.py", "python experiments/figure8.py --full --trace city.parquet")
