"""Accuracy by number of streams on one and on two GPUs (Figure 6), and each scheduler's capacity (Table 3).

    python experiments/figure6.py
    python experiments/figure6.py --full --trace city.parquet

The capacity of Table 3 is the largest number of streams up to which accuracy stays at the target or above.
The paper's target is 75% on Cityscapes; traces reach more or less than that, so a second target is reported
too: nine tenths of the accuracy of `ekya` with the fewest streams on two GPUs.
"""

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.figure import Figure
from played import (
    EKYA,
    OURS,
    PAPER,
    PAPER_BASELINES,
    SEEDS,
    Data,
    conditions,
    draw_schedulers,
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
    points,
    run,
)

from ekya.results.report.themes import LIGHT

GPUS = (1.0, 2.0)
TARGET = 0.75
PAPER_GAIN = {1.0: "up to 29 points", 2.0: "up to 23 points"}
PAPER_CAPACITY = {
    PAPER: "2, 8 (4x)",
    PAPER_BASELINES[0]: "2, 2 (1x)",
    PAPER_BASELINES[1]: "2, 4 (2x)",
    PAPER_BASELINES[2]: "2, 4 (2x)",
    PAPER_BASELINES[3]: "0, 2",
}
"""Table 3: streams on one and on two GPUs."""


def counts(data: Data, full: bool) -> list[int]:
    """Returns the numbers of streams to play."""
    steps = range(1, data.streams + 1) if full or data.streams <= 4 else range(2, data.streams + 1, 2)
    return list(steps)


def rows_of(data: Data, full: bool, seed: int, step: Callable[[], None]) -> list[dict[str, Any]]:
    """Plays every scheduler with every number of streams."""
    players = {**ours(data), **uniform_baselines(data)}
    rows = []
    for gpus in GPUS:
        for streams in counts(data, full):
            for name, who in players.items():
                outcome = play(data.first(streams), who, conditions(gpus, seed))
                rows.append(
                    {
                        "data": data.name,
                        "gpus": gpus,
                        "streams": streams,
                        "scheduler": name,
                        "accuracy": outcome.accuracy,
                    }
                )
                step()
    return rows


def line(rows: Sequence[dict[str, Any]], data: str, gpus: float, scheduler: str) -> dict[int, float]:
    """Returns accuracy by the number of streams."""
    return {
        row["streams"]: row["accuracy"]
        for row in rows
        if (row["data"], row["gpus"], row["scheduler"]) == (data, gpus, scheduler)
    }


def capacity(reached: dict[int, float], target: float) -> int:
    """Returns the largest number of streams up to which the target is reached; 0 if the fewest miss it."""
    kept = 0
    for streams, accuracy in sorted(reached.items()):
        if accuracy < target:
            return kept
        kept = streams
    return kept


def capacities(rows: Sequence[dict[str, Any]], data: str, scheduler: str, target: float) -> str:
    """Formats the capacities as in Table 3."""
    one, two = (capacity(line(rows, data, gpus, scheduler), target) for gpus in GPUS)
    return f"{one}, {two} ({two / one:g}x)" if one else f"{one}, {two}"


def own_target(rows: Sequence[dict[str, Any]], data: str) -> float:
    """Returns nine tenths of the accuracy of `ekya` with the fewest streams on two GPUs."""
    reached = line(rows, data, GPUS[-1], EKYA)
    return 0.9 * reached[min(reached)]


def most_above(rows: Sequence[dict[str, Any]], data: str, gpus: float, scheduler: str) -> float:
    """Returns the largest lead over the worst of the paper's baselines, over all numbers of streams."""
    baselines = [line(rows, data, gpus, name) for name in PAPER_BASELINES]
    own = line(rows, data, gpus, scheduler)
    return max(own[streams] - min(one[streams] for one in baselines) for streams in own)


def above_best(rows: Sequence[dict[str, Any]], data: str, gpus: float, scheduler: str) -> str:
    """Formats the smallest and the largest lead over the best of the paper's baselines."""
    baselines = [line(rows, data, gpus, name) for name in PAPER_BASELINES]
    leads = [
        accuracy - max(one[streams] for one in baselines)
        for streams, accuracy in line(rows, data, gpus, scheduler).items()
    ]
    return f"{points(min(leads))} to {points(max(leads))}"


def found(rows: list[dict[str, Any]], names: Sequence[str]) -> Finding:
    """Returns the table, the figure and the paper's numbers beside ours."""
    beside = [
        Beside(
            f"{scheduler} above the worst uniform baseline, {gpus:g} GPU{'s' if gpus > 1 else ''}",
            PAPER_GAIN[gpus] if scheduler == PAPER else "",
            {
                data: f"up to {points(most_above(rows, data, gpus, scheduler))}"
                for data in shown(rows, names, scheduler)
            },
        )
        for scheduler in OURS
        for gpus in GPUS
    ]
    beside += [
        Beside(
            f"{scheduler} above the best uniform baseline, {gpus:g} GPU{'s' if gpus > 1 else ''}",
            "",
            {data: above_best(rows, data, gpus, scheduler) for data in shown(rows, names, scheduler)},
        )
        for scheduler in OURS
        for gpus in GPUS
    ]
    for scheduler in (*OURS, *PAPER_BASELINES):
        beside.append(
            Beside(
                f"Table 3 (streams at {TARGET:.0%}, on 1 and 2 GPUs), {scheduler}",
                PAPER_CAPACITY.get(scheduler, ""),
                {data: capacities(rows, data, scheduler, TARGET) for data in shown(rows, names, scheduler)},
            )
        )
    for scheduler in (*OURS, *PAPER_BASELINES):
        told = {
            data: capacities(rows, data, scheduler, own_target(rows, data))
            for data in shown(rows, names, scheduler)
        }
        beside.append(Beside(f"streams at nine tenths of the best, {scheduler}", "", told))
    return Finding(
        name="figure6",
        title="Figure 6: accuracy by the number of streams, on one and on two GPUs",
        rows=rows,
        beside=beside,
        why="A generated stream needs 0.15 to 0.45 GPUs to be analysed in full, and the paper does not "
        "say what its own need; so a target is passed at another number of streams, in the paper's "
        "order.",
        figure=_drawn(rows, names),
    )


def _drawn(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> Figure:
    figure, axes = new_figure(len(GPUS), len(names), 2.6, foot=2.2, sharey="row")
    for line, data in zip(axes, names, strict=True):
        for panel, gpus in zip(line, GPUS, strict=True):
            own = [row for row in rows if (row["data"], row["gpus"]) == (data, gpus)]
            draw_schedulers(panel, own, "streams")
            title = f"{data}, {gpus:g} GPU{'s' if gpus > 1 else ''}"
            panel.set_title(title, fontsize=10, loc="left", color=LIGHT.ink)
            panel.set_xticks(sorted({row["streams"] for row in own}))
            paper_line(panel, TARGET, "Table 3's target", right=True)
        accuracy_axis(line[0])
    for panel in axes[-1]:
        panel.set_xlabel("streams", fontsize=9, color=LIGHT.ink)
    legend(figure, axes[0][0], columns=6)
    return figure


def main(
    full: Full = False, trace: Traces = None, seed: Seed = 0, json_to: Json = None, out: Out = RESULTS
) -> None:
    """Play 1 to 8 streams on one and on two GPUs: Figure 6 and Table 3."""
    with channel(json_to, out) as tell:
        drawn = generated(8, 10 if full else 4, range(seed, seed + SEEDS))
        every = [drawn, *recorded(trace)]
        total = len(GPUS) * sum(
            len(counts(data, full)) * (len(ours(data)) + len(PAPER_BASELINES)) for data in every
        )
        with tell.steps("Figure 6", total) as step:
            rows = [row for data in every for row in rows_of(data, full, seed, step)]
        tell.publish(found(rows, [data.name for data in every]))


if __name__ == "__main__":
    run(
        main,
        "python experiments/figure6.py",
        "python experiments/figure6.py --trace city.parquet --json - | jq .paper",
    )
