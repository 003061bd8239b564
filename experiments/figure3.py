"""Cost and accuracy of retraining configurations (Figure 3).

    python experiments/figure3.py
    python experiments/figure3.py --trace city.parquet

Every γ of one stream in one window: GPU-seconds and accuracy after the retraining. The Pareto frontier holds
the γ that no other γ beats in both. The window shown of each trace is the one in which retraining corrects
most objects.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from optimum.pareto import pareto_frontier
from optimum.problems import view_of
from played import Data, generated, recorded
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

from ekya.core.view import RetrainOption, StreamView
from ekya.results.report.themes import LIGHT

ALIKE = 0.005
"""Accuracies that differ by at most this much count as equal."""


@dataclass(frozen=True, slots=True)
class Window:
    """One stream in one window, with the outcome of every γ.

    Attributes:
        objects: number that arrive in it.
    """

    data: str
    index: int
    stream: StreamView
    objects: int

    @property
    def gain(self) -> float:
        """Number of objects that the best retraining corrects."""
        best = max(one.accuracy_after for one in self.stream.retrain_options)
        return (best - self.stream.accuracy) * self.objects


def windows_of(data: Data) -> Iterator[Window]:
    """Yields all windows with at least one retraining."""
    for trace in data.traces:
        for index in range(1, trace.windows):
            windows = {one.stream: one.windows for one in trace.streams}
            for stream in view_of(trace, index, 1000).streams:
                if stream.retrain_options:
                    objects = sum(windows[stream.stream][index].class_histogram)
                    yield Window(data.name, index, stream, objects)


def spread(options: Sequence[RetrainOption]) -> float:
    """Returns the ratio of the most expensive γ to the cheapest."""
    costs = [one.gpu_s for one in options]
    return max(costs) / min(costs)


def wasted(options: Sequence[RetrainOption]) -> float:
    """Returns the largest ratio of cost between two γ with the same accuracy."""
    ratios = [
        max(a.gpu_s, b.gpu_s) / min(a.gpu_s, b.gpu_s)
        for a, b in combinations(options, 2)
        if abs(a.accuracy_after - b.accuracy_after) <= ALIKE
    ]
    return max(ratios, default=1.0)


def rows_of(window: Window) -> list[dict[str, Any]]:
    """Returns one row for each γ."""
    frontier = {one.config for one in pareto_frontier([window.stream.retrain_options])}
    return [
        {
            "data": window.data,
            "stream": window.stream.stream,
            "window": window.index,
            "epochs": one.config.epochs,
            "batch_size": one.config.batch_size,
            "head_width": one.config.head_width,
            "trainable_blocks": one.config.trainable_blocks,
            "data_fraction": one.config.data_fraction,
            "gpu_s": one.gpu_s,
            "accuracy": one.accuracy_after,
            "accuracy_before": window.stream.accuracy,
            "pareto": one.config in frontier,
        }
        for one in window.stream.retrain_options
    ]


def found(shown: Sequence[Window]) -> Finding:
    """Returns the table, the figure and the paper's numbers beside ours."""
    options = {window.data: window.stream.retrain_options for window in shown}
    best = {data: max(one.accuracy_after for one in own) for data, own in options.items()}
    beside = [
        Beside(
            "cost of the most expensive γ over that of the cheapest",
            "up to 200x",
            {data: f"{spread(own):.0f}x" for data, own in options.items()},
        ),
        Beside(
            "cost of a γ over that of another with the same accuracy",
            "6x at about 76%",
            {data: f"up to {wasted(own):.0f}x" for data, own in options.items()},
        ),
        Beside("accuracy of the best γ", "", {data: percent(value) for data, value in best.items()}),
    ]
    return Finding(
        name="figure3",
        title="Figure 3: what retraining configurations cost and bring",
        rows=[row for window in shown for row in rows_of(window)],
        beside=beside,
        why="The generator was given the paper's spread of cost; a recorded fleet's Γ is what its file "
        "says, with fewer epochs and parts of the data.",
        figure=_drawn(shown),
    )


def _drawn(shown: Sequence[Window]) -> Figure:
    figure, axes = new_figure(len(shown), 1, 3.4)
    blocks = sorted(
        {one.config.trainable_blocks for window in shown for one in window.stream.retrain_options}
    )
    for panel, window in zip(axes[0], shown, strict=True):
        _draw_window(panel, window, blocks)
        accuracy_axis(panel, "accuracy after the retraining" if panel is axes[0][0] else "")
    legend(figure, axes[0][0])
    return figure


def _draw_window(panel: Axes, window: Window, blocks: Sequence[int]) -> None:
    options = window.stream.retrain_options
    for place, count in enumerate(blocks):
        own = [one for one in options if one.config.trainable_blocks == count]
        name = "head alone is trained" if count == 0 else f"{count} blocks as well"
        panel.scatter(
            [one.gpu_s for one in own],
            [one.accuracy_after for one in own],
            s=[12 + 50 * one.config.data_fraction for one in own],
            color=LIGHT.streams[place],
            alpha=0.75,
            linewidth=0,
            label=f"{name} (small: part of the data)",
        )
    frontier = pareto_frontier([options])
    panel.step(
        [one.gpu_s for one in frontier],
        [one.accuracy_after for one in frontier],
        where="post",
        color=LIGHT.ink,
        linewidth=1.1,
        label="Pareto frontier",
    )
    panel.axhline(window.stream.accuracy, color=LIGHT.quiet, linestyle=":", label="before")
    panel.set_xscale("log")
    panel.set_xlabel("GPU-seconds at 100% of a GPU", fontsize=9, color=LIGHT.ink)
    title = f"{window.data}: {window.stream.stream}, window {window.index}; cost up to {spread(options):.0f}x"
    panel.set_title(title, fontsize=10, loc="left", color=LIGHT.ink)


def main(
    full: Full = False, trace: Traces = None, seed: Seed = 0, json_to: Json = None, out: Out = RESULTS
) -> None:
    """Show cost and accuracy of every retraining configuration: Figure 3."""
    with channel(json_to, out) as tell:
        every = [generated(10, 10 if full else 4, [seed]), *recorded(trace)]
        tell.publish(found([max(windows_of(data), key=lambda window: window.gain) for data in every]))


if __name__ == "__main__":
    run(main, "python experiments/figure3.py", "python experiments/figure3.py --trace city.parquet")
