"""Serving an old model again instead of retraining (§6.5).

    python experiments/reuse.py
    python experiments/reuse.py --full --trace city.parquet

In each window `reuse` serves the kept model whose labels had the most similar mix of classes. The paper
plays ten streams on 8 GPUs. `oracle` is ours with the true profiles instead of estimates.
"""

from collections.abc import Callable, Sequence
from typing import Any

from detect_gains import Estimate
from matplotlib.figure import Figure
from played import EKYA, NO_RETRAIN, SEEDS, STYLES, THIEF, Data, Who, conditions, generated, play, recorded
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
    paper_mark,
    percent,
    run,
)

from ekya.results.report.themes import LIGHT

GPUS_PER_STREAM = 0.8
REUSE, ORACLE = "reuse", "oracle"
PLAYED = (ORACLE, EKYA, THIEF, REUSE, NO_RETRAIN)
PAPER = {THIEF: 0.78, REUSE: 0.72}


def rows_of(data: Data, seed: int, step: Callable[[], None]) -> list[dict[str, Any]]:
    """Plays all schedulers on 0.8 GPUs a stream."""
    gpus = round(GPUS_PER_STREAM * data.streams, 2)
    rows = []
    for name in PLAYED:
        reached = Estimate.of(play(data, Who(name), conditions(gpus, seed)).by_trace)
        rows.append(
            {
                "data": data.name,
                "gpus": gpus,
                "scheduler": name,
                "accuracy": reached.mean,
                "low": reached.low,
                "high": reached.high,
                "paper": PAPER.get(name, ""),
            }
        )
        step()
    return rows


def found(rows: list[dict[str, Any]], names: Sequence[str]) -> Finding:
    """Returns the table, the figure and the paper's numbers beside ours."""
    reached = {(row["data"], row["scheduler"]): row for row in rows}
    return Finding(
        name="reuse",
        title="Serving an old model again, ten streams (recorded: all there are) on 0.8 GPUs each",
        rows=rows,
        beside=[
            Beside(
                f"accuracy of {name}",
                f"{PAPER[name]:.0%}" if name in PAPER else "",
                {data: _told(reached[data, name]) for data in names},
            )
            for name in PLAYED
        ],
        why="The paper keeps a few tens of models of a whole city's videos, here a stream keeps its own "
        "of the windows before; and how far a scene moves besides its mix of classes is the "
        "generator's choice, or the city's.",
        figure=_drawn(rows, names),
    )


def _told(row: dict[str, Any]) -> str:
    low, high = row["low"], row["high"]
    return percent(row["accuracy"]) + ("" if low is None else f" ({percent(low)} to {percent(high)})")


def _drawn(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> Figure:
    figure, axes = new_figure(len(names), 1, 2.8, foot=1.5, sharey=True)
    for panel, data in zip(axes[0], names, strict=True):
        own = [row for row in rows if row["data"] == data]
        drawn = panel.bar(
            [row["scheduler"] for row in own],
            [row["accuracy"] for row in own],
            0.7,
            color=[STYLES[row["scheduler"]][0] for row in own],
        )
        panel.bar_label(
            drawn,
            [f"{100 * row['accuracy']:.1f}" for row in own],
            label_type="center",
            fontsize=8,
            color=LIGHT.page,
        )
        panel.set_title(data, fontsize=10, loc="left", color=LIGHT.ink)
        panel.grid(axis="x", visible=False)
        for name, accuracy in PAPER.items():
            paper_mark(panel, PLAYED.index(name), accuracy, "_")
    accuracy_axis(axes[0][0])
    legend(figure, axes[0][0])
    return figure


def main(
    full: Full = False, trace: Traces = None, seed: Seed = 0, json_to: Json = None, out: Out = RESULTS
) -> None:
    """Serve kept models by their mix of classes instead of retraining."""
    with channel(json_to, out) as tell:
        every = [
            generated(10, 10 if full else 8, range(seed, seed + SEEDS)),
            *recorded(trace),
        ]
        with tell.steps("reuse", len(every) * len(PLAYED)) as step:
            rows = [row for data in every for row in rows_of(data, seed, step)]
        tell.publish(found(rows, [data.name for data in every]))


if __name__ == "__main__":
    run(main, "python experiments/reuse.py", "python experiments/reuse.py --full --trace city.parquet")
