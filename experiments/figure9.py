"""Shares over the windows: the stream that gains most beside the one that gains least (Figure 9).

    python experiments/figure9.py
    python experiments/figure9.py --trace city.parquet

All streams are played (generated data: ten on 4 GPUs), and two are shown. Shares are means over a window.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from played import (
    EKYA,
    NO_RETRAIN,
    PAPER_BASELINES,
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
    percent,
    run,
)

from ekya.results.report.themes import LIGHT, mixed
from ekya.simulation.trace.simulate import summary_of

GPUS_PER_STREAM = 0.4
UNIFORM = PAPER_BASELINES[0]
PAPER = {"gains most": "82%", "gains least": "83%"}
"""Accuracy of Ekya's two streams, Urban Building."""


@dataclass(frozen=True, slots=True)
class Shown:
    """One stream in one window under one scheduler; shares in GPUs."""

    data: str
    scheduler: str
    part: str
    stream: str
    window: int
    accuracy: float
    retraining_gpus: float
    inference_gpus: float
    retrained: bool


def windows_of(data: Data, who: Who, seed: int) -> dict[str, list[dict[str, Any]]]:
    """Returns each stream's windows of a run's summary, from window 1 to the stream's end."""
    gpus = round(GPUS_PER_STREAM * data.streams, 2)
    told = summary_of(play(data, who, conditions(gpus, seed)).played[0])["streams"]
    return {
        name: [window for window in stream["windows"][1:] if window["accuracy"] is not None]
        for name, stream in told.items()
    }


def rows_of(data: Data, seed: int) -> list[Shown]:
    """Returns two streams under both schedulers."""
    still = windows_of(data, Who(NO_RETRAIN), seed)
    played = {
        name: windows_of(data, who, seed)
        for name, who in ((UNIFORM, uniform_baselines(data)[UNIFORM]), (EKYA, Who(EKYA)))
    }
    gains = {stream: _mean(played[EKYA][stream]) - _mean(still[stream]) for stream in still}
    parts = {
        "gains most": max(gains, key=gains.__getitem__),
        "gains least": min(gains, key=gains.__getitem__),
    }
    return [
        Shown(
            data=data.name,
            scheduler=scheduler,
            part=part,
            stream=stream,
            window=window["index"],
            accuracy=window["accuracy"],
            retraining_gpus=window["retrain_share_milli"] / 1000,
            inference_gpus=window["inference_share_milli"] / 1000,
            retrained=window["retrained"],
        )
        for scheduler, streams in played.items()
        for part, stream in parts.items()
        for window in streams[stream]
    ]


def _mean(windows: Sequence[dict[str, Any]]) -> float:
    return fmean(window["accuracy"] for window in windows)


def chosen(rows: Sequence[Shown], data: str, scheduler: str, part: str) -> list[Shown]:
    """Returns the rows of one panel."""
    return [row for row in rows if (row.data, row.scheduler, row.part) == (data, scheduler, part)]


def found(rows: Sequence[Shown], names: Sequence[str]) -> Finding:
    """Returns the table, the figure and the paper's numbers beside ours."""
    beside = [
        Beside(
            f"stream that {part}, {scheduler}: {what}",
            PAPER[part] if (scheduler, what) == (EKYA, "accuracy") else "",
            {data: _told(chosen(rows, data, scheduler, part), what) for data in names},
        )
        for part in PAPER
        for scheduler in (EKYA, UNIFORM)
        for what in ("accuracy", "mean share of retraining", "windows that retrained")
    ]
    return Finding(
        name="figure9",
        title="Figure 9: shares of two streams over the windows",
        rows=[asdict(row) for row in rows],
        beside=beside,
        why="Other scenes, other accuracies; what the paper shows holds: uniform gives every stream the "
        "same, and Ekya retrains where, and as much as, it pays.",
        figure=_drawn(rows, names),
    )


def _told(rows: Sequence[Shown], what: str) -> str:
    if what == "accuracy":
        return percent(fmean(row.accuracy for row in rows))
    if what == "windows that retrained":
        return f"{sum(row.retrained for row in rows)} of {len(rows)}"
    return f"{fmean(row.retraining_gpus for row in rows):.2f} GPUs"


def _drawn(rows: Sequence[Shown], names: Sequence[str]) -> Figure:
    figure, axes = new_figure(2, len(PAPER) * len(names), 2.0, foot=1.6, sharey=True)
    lines = [(data, part) for data in names for part in PAPER]
    for line, (data, part) in zip(axes, lines, strict=True):
        for panel, scheduler in zip(line, (UNIFORM, EKYA), strict=True):
            own = chosen(rows, data, scheduler, part)
            _draw_panel(panel, own)
            short = "uniform" if scheduler == UNIFORM else scheduler
            title = f"{data}, {own[0].stream} {part}, {short}: {_told(own, 'accuracy')}"
            panel.set_title(title, fontsize=8.5, loc="left", color=LIGHT.ink)
        line[0].set_ylabel("GPUs · accuracy", fontsize=9, color=LIGHT.ink)
    for panel in axes[-1]:
        panel.set_xlabel("window", fontsize=9, color=LIGHT.ink)
    legend(figure, axes[0][0])
    return figure


def _draw_panel(panel: Axes, own: Sequence[Shown]) -> None:
    color = LIGHT.streams[0]
    windows = [row.window for row in own]
    inference = [row.inference_gpus for row in own]
    panel.bar(windows, inference, color=mixed(color, LIGHT.page, 0.3), label="share of inference")
    panel.bar(
        windows,
        [row.retraining_gpus for row in own],
        bottom=inference,
        color=mixed(color, LIGHT.page, 0.85),
        label="share of retraining",
    )
    panel.plot(windows, [row.accuracy for row in own], "o-", color=LIGHT.streams[1], label="accuracy")
    panel.set(ylim=(0, 1.05), xticks=windows)
    accuracy_axis(panel, "")


def main(
    full: Full = False, trace: Traces = None, seed: Seed = 0, json_to: Json = None, out: Out = RESULTS
) -> None:
    """Show the shares of two streams over the windows: Figure 9."""
    with channel(json_to, out) as tell:
        every = [generated(10, 10 if full else 8, [seed]), *recorded(trace)]
        rows: list[Shown] = []
        with tell.steps("Figure 9", len(every)) as step:
            for data in every:
                rows += rows_of(data, seed)
                step()
        tell.publish(found(rows, [data.name for data in every]))


if __name__ == "__main__":
    run(main, "python experiments/figure9.py", "python experiments/figure9.py --trace city.parquet")
