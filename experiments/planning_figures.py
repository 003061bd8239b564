"""Draws what plans choose, and from what: costs of γ, shares, and the quantum (Figures 3, 9 and 10)."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import combinations, product
from statistics import fmean, median

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from optimum.pareto import (
    INFERENCE_PARTS_MILLI,
    mean_options,
    pareto_frontier,
    pareto_points,
    profiles,
    uniform_baselines,
    uniform_word,
)
from optimum.problems import view_of
from played import (
    EKYA,
    NO_RETRAIN,
    PAPER_BASELINES,
    THIEF,
    Data,
    Who,
    accuracy_of,
    draw_panels,
    paper_baselines,
    play,
)
from recipe import Beside, accuracy_axis, legend, new_figure, percent, points
from recipe_table import Row, rows_where

from ekya.core.configs import RetrainConfig
from ekya.core.plan import Plan
from ekya.core.units import FULL_GPU_MILLI
from ekya.core.view import StreamView, WindowView
from ekya.planning.schedulers.registry import make_scheduler
from ekya.planning.schedulers.scheduler import Needs, Scheduler
from ekya.results.report.themes import LIGHT, mix_color
from ekya.simulation.trace.simulate import Conditions, simulate, summary_of

# Figure 3: every γ of one stream in one window: GPU-seconds, and accuracy after the retraining. The Pareto
# frontier holds the γ that no other γ beats in both. The window shown of each trace is the one in which
# retraining corrects most objects.

ALIKE = 0.005
"""Accuracies that differ by at most this much count as equal."""


@dataclass(frozen=True, slots=True)
class Window:
    """One stream in one window, with the outcome of every γ; ``objects`` is the number that arrive in it."""

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
        windows = {one.stream: one.windows for one in trace.streams}
        for index in range(1, trace.windows):
            for stream in view_of(trace, index, 1000).streams:
                if stream.retrain_options:
                    yield Window(index, stream, sum(windows[stream.stream][index].class_histogram))


def list_gammas(data: Data, full: bool, seed: int) -> Iterator[Row]:
    """Yields a row for each γ of the window that is shown."""
    window = max(windows_of(data), key=lambda window: window.gain)
    options = window.stream.retrain_options
    frontier = {one.config for one in pareto_frontier([options])}
    for one in options:
        yield {
            "data": data.name,
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


def spread(own: Sequence[Row]) -> float:
    """Returns the ratio of the most expensive γ to the cheapest."""
    costs = [row["gpu_s"] for row in own]
    return float(max(costs) / min(costs))


def wasted(own: Sequence[Row]) -> float:
    """Returns the largest ratio of cost between two γ with the same accuracy."""
    alike = [pair for pair in combinations(own, 2) if abs(pair[0]["accuracy"] - pair[1]["accuracy"]) <= ALIKE]
    return max(map(spread, alike), default=1.0)


def beside_gammas(rows: Sequence[Row], names: Sequence[str]) -> Iterator[Beside]:
    """Yields spreads of cost, and the best accuracy."""
    own = {data: rows_where(rows, data=data) for data in names}
    yield Beside(
        "cost of the most expensive γ over that of the cheapest",
        "up to 200x",
        {data: f"{spread(each):.0f}x" for data, each in own.items()},
    )
    yield Beside(
        "cost of a γ over that of another with the same accuracy",
        "6x at about 76%",
        {data: f"up to {wasted(each):.0f}x" for data, each in own.items()},
    )
    best = {data: percent(max(row["accuracy"] for row in each)) for data, each in own.items()}
    yield Beside("accuracy of the best γ", "", best)


def draw_gammas(rows: Sequence[Row], names: Sequence[str]) -> Figure:
    """Draws accuracy over cost, a panel for each data."""
    blocks = sorted({row["trainable_blocks"] for row in rows})

    def draw(panel: Axes, own: Sequence[Row]) -> None:
        for place, count in enumerate(blocks):
            name = "head alone is trained" if count == 0 else f"{count} blocks as well"
            these = rows_where(own, trainable_blocks=count)
            panel.scatter(
                [row["gpu_s"] for row in these],
                [row["accuracy"] for row in these],
                s=[12 + 50 * row["data_fraction"] for row in these],
                color=LIGHT.streams[place],
                alpha=0.75,
                linewidth=0,
                label=f"{name} (small: part of the data)",
            )
        frontier = sorted(rows_where(own, pareto=True), key=lambda row: float(row["gpu_s"]))
        line = [[row[key] for row in frontier] for key in ("gpu_s", "accuracy")]
        panel.step(*line, where="post", color=LIGHT.ink, linewidth=1.1, label="Pareto frontier")
        panel.axhline(own[0]["accuracy_before"], color=LIGHT.quiet, linestyle=":", label="before")
        panel.set_xscale("log")
        accuracy_axis(panel, "")

    panels = []
    for data in names:
        own = rows_where(rows, data=data)
        title = f"{data}: {own[0]['stream']}, window {own[0]['window']}; cost up to {spread(own):.0f}x"
        panels.append((title, own))
    label = "accuracy after the retraining"
    return draw_panels([panels], draw, "GPU-seconds at 100% of a GPU", height=3.4, y=label, sharey=False)


# Figure 3b: the two γ of the paper's uniform baseline (§6.1), the mean over all windows of two streams that
# are never played: the most accurate point of the frontier, and the cheapest that is nine tenths as accurate.

HELD_OUT = 2
"""Streams that the paper holds out."""

GAMMA = tuple(field.name for field in fields(RetrainConfig))
"""Columns that identify the γ of a row."""


def average_gammas(data: Data, full: bool, seed: int) -> Iterator[Row]:
    """Yields a row for each γ."""
    trace = data.traces[0]
    options = list(profiles(replace(trace, streams=trace.streams[-HELD_OUT:])))
    frontier = {one.config for one in pareto_frontier(options)}
    high, low = pareto_points(options)
    for one in sorted(mean_options(options), key=lambda one: (one.gpu_s, one.config)):
        yield {
            "data": data.name,
            **asdict(one.config),
            "gpu_s": one.gpu_s,
            "accuracy": one.accuracy_after,
            "pareto": one.config in frontier,
            # A γ that is both configurations is listed as Config 1.
            "config": {low: 2, high: 1}.get(one.config),
        }


def beside_averages(rows: Sequence[Row], names: Sequence[str]) -> Iterator[Beside]:
    """Yields the baselines, as ``ekya simulate --scheduler`` takes them."""

    def words(data: str) -> list[str]:
        own = {}
        for row in rows_where(rows, data=data):
            own[row["config"]] = RetrainConfig(**{key: row[key] for key in GAMMA})
        return [uniform_word(one) for one in uniform_baselines(own[1], own.get(2, own[1]))]

    every = {data: words(data) for data in names}
    for place, (config, part) in enumerate(product((1, 2), INFERENCE_PARTS_MILLI)):
        told = {data: own[place] for data, own in every.items()}
        yield Beside(f"Config {config}, {part / 10:g}% for inference", "", told, below=False)


def draw_averages(rows: Sequence[Row], names: Sequence[str]) -> Figure:
    """Draws accuracy over cost, a panel for each data."""

    def draw(panel: Axes, own: Sequence[Row]) -> None:
        for these, style in ((own, "o"), (rows_where(own, pareto=True), "o-")):
            line = [[row[key] for row in these] for key in ("gpu_s", "accuracy")]
            panel.plot(*line, style, color=LIGHT.streams[style == "o"])
        for row in own:
            if row["config"]:
                place = (row["gpu_s"], row["accuracy"])
                panel.annotate(f"Config {row['config']}", place, (0, -16), textcoords="offset points")

    panels = [(data, rows_where(rows, data=data)) for data in names]
    label = "accuracy after the retraining"
    return draw_panels([panels], draw, "GPU-seconds", height=3.4, y=label, sharey=False)


# Figure 9: shares over the windows of the stream that gains most and of the one that gains least. All
# streams are played (generated data: ten on 4 GPUs). Shares are means over a window.

UNIFORM = PAPER_BASELINES[0]
PAPER_SHOWN = {"gains most": "82%", "gains least": "83%"}
"""Accuracy of Ekya's two streams, Urban Building."""


def play_shares(data: Data, full: bool, seed: int) -> Iterator[Row]:
    """Yields the windows of two streams under both schedulers; shares are in GPUs."""

    def windows_under(who: Who) -> dict[str, list[Row]]:
        told = summary_of(play(data, who, Conditions(data.gpus(0.4), seed=seed)).played[0])["streams"]
        # From window 1 to the stream's end.
        return {
            name: [window for window in stream["windows"][1:] if window["accuracy"] is not None]
            for name, stream in told.items()
        }

    def mean(windows: Sequence[Row]) -> float:
        return fmean(window["accuracy"] for window in windows)

    still = windows_under(Who(NO_RETRAIN))
    played = {
        UNIFORM: windows_under(paper_baselines(data)[UNIFORM]),
        EKYA: windows_under(Who(EKYA)),
    }
    gains = {stream: mean(played[EKYA][stream]) - mean(still[stream]) for stream in still}
    parts = {
        "gains most": max(gains, key=gains.__getitem__),
        "gains least": min(gains, key=gains.__getitem__),
    }
    for (scheduler, streams), (part, stream) in product(played.items(), parts.items()):
        for window in streams[stream]:
            yield {
                "data": data.name,
                "scheduler": scheduler,
                "part": part,
                "stream": stream,
                "window": window["index"],
                "accuracy": window["accuracy"],
                "retraining_gpus": window["retrain_share_milli"] / 1000,
                "inference_gpus": window["inference_share_milli"] / 1000,
                "retrained": window["retrained"],
            }


def beside_shares(rows: Sequence[Row], names: Sequence[str]) -> Iterator[Beside]:
    """Yields each stream's accuracy, share of retraining and number of retrainings."""
    tells = {
        "accuracy": lambda own: percent(fmean(row["accuracy"] for row in own)),
        "mean share of retraining": lambda own: f"{fmean(row['retraining_gpus'] for row in own):.2f} GPUs",
        "windows that retrained": lambda own: f"{sum(row['retrained'] for row in own)} of {len(own)}",
    }
    for part, scheduler, (what, tell) in product(PAPER_SHOWN, (EKYA, UNIFORM), tells.items()):
        yield Beside(
            f"stream that {part}, {scheduler}: {what}",
            PAPER_SHOWN[part] if (scheduler, what) == (EKYA, "accuracy") else "",
            {data: tell(rows_where(rows, data=data, scheduler=scheduler, part=part)) for data in names},
        )


def draw_shares(rows: Sequence[Row], names: Sequence[str]) -> Figure:
    """Draws shares and accuracy over windows, a line of panels for each stream."""
    color = LIGHT.streams[0]

    def draw(panel: Axes, own: Sequence[Row]) -> None:
        windows = [row["window"] for row in own]
        below = [row["inference_gpus"] for row in own]
        above = [row["retraining_gpus"] for row in own]
        panel.bar(windows, below, color=mix_color(color, LIGHT.page, 0.3), label="share of inference")
        dark = mix_color(color, LIGHT.page, 0.85)
        panel.bar(windows, above, bottom=below, color=dark, label="share of retraining")
        accuracies = [row["accuracy"] for row in own]
        panel.plot(windows, accuracies, "o-", color=LIGHT.streams[1], label="accuracy")
        panel.set(ylim=(0, 1.05), xticks=windows)

    lines = []
    for data, part in product(names, PAPER_SHOWN):
        lines.append([])
        for scheduler in (UNIFORM, EKYA):
            own = rows_where(rows, data=data, scheduler=scheduler, part=part)
            short = "uniform" if scheduler == UNIFORM else scheduler
            reached = percent(fmean(row["accuracy"] for row in own))
            lines[-1].append((f"{data}, {own[0]['stream']} {part}, {short}: {reached}", own))
    return draw_panels(
        lines, draw, "window", height=2.0, foot=1.6, y="GPUs · accuracy", title_size=8.5, sharey=True
    )


# Figure 10: the thief steals Δ at a time. The paper does not give its smallest share δ, so both ends are
# shown: shares in steps of Δ, and in steps of 0.05 for every Δ. Where a fair share is smaller than Δ, our
# thief steals δ instead. Planning is timed on one thread: the plans in which every stream may still be
# retrained.

STEPS_MILLI = (100, 200, 400, 500, 1000)
FINE_MILLI = 50
COARSE, FINE = "shares in steps of Δ", "shares in steps of 0.05"


@dataclass(slots=True)
class TimedExecutor:
    """Wraps a scheduler and times its plans.

    Attributes:
        inner: wrapped scheduler.
        seconds: of each plan, with the number of streams that could begin a retraining then.
    """

    inner: Scheduler
    seconds: list[tuple[float, int]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Name of the wrapped scheduler."""
        return self.inner.name

    @property
    def needs(self) -> Needs:
        """Needs of the wrapped scheduler."""
        return self.inner.needs

    def plan(self, view: WindowView) -> Plan:
        """Returns the wrapped scheduler's plan and records its time."""
        began = time.process_time()
        plan = self.inner.plan(view)
        free = sum(bool(stream.retrain_options) for stream in view.streams)
        self.seconds.append((time.process_time() - began, free))
        return plan


def play_by_quantum(data: Data, full: bool, seed: int) -> Iterator[Row]:
    """Plays both kinds of shares for every Δ, on 8 GPUs."""
    for kind, delta in product((COARSE, FINE), STEPS_MILLI):
        quantum = delta if kind == COARSE else FINE_MILLI
        under = Conditions(8.0, steal_milli=delta, quantum_milli=quantum, seed=seed)
        scheduler = TimedExecutor(make_scheduler(THIEF))
        reached = [accuracy_of(simulate(trace, scheduler, under)) for trace in data.traces]
        most = max(free for _, free in scheduler.seconds)
        yield {
            "kind": kind,
            "delta": delta / FULL_GPU_MILLI,
            "accuracy": sum(reached) / len(reached),
            "planning_s": median(seconds for seconds, free in scheduler.seconds if free == most),
            "plans": len(scheduler.seconds),
        }


def beside_by_quantum(rows: Sequence[Row], names: Sequence[str]) -> Iterator[Beside]:
    """Yields what a fine quantum brings, and how long plans take with it."""
    by_kind = {kind: rows_where(rows, kind=kind) for kind in (COARSE, FINE)}
    gain = {kind: points(own[0]["accuracy"] - own[-1]["accuracy"]) for kind, own in by_kind.items()}
    yield Beside("accuracy at Δ = 0.1 over Δ = 1.0", "about +8 points", gain)
    took = {kind: f"{1000 * own[0]['planning_s']:.0f} ms" for kind, own in by_kind.items()}
    yield Beside("planning at Δ = 0.1", "9.5 s", took)


def draw_by_quantum(rows: Sequence[Row], names: Sequence[str]) -> Figure:
    """Draws accuracy and planning time over Δ."""
    figure, axes = new_figure(2, 1, 3.0)
    for kind, color in zip((COARSE, FINE), LIGHT.streams, strict=False):
        own = rows_where(rows, kind=kind)
        for panel, key in zip(axes[0], ("accuracy", "planning_s"), strict=True):
            panel.plot(
                [row["delta"] for row in own], [row[key] for row in own], "o-", color=color, label=kind
            )
    axes[0][1].plot([0.1], [9.5], "*", color=LIGHT.ink, markersize=11, label="paper, Δ = 0.1: 9.5 s")
    axes[0][1].set_yscale("log")
    axes[0][1].set_ylabel("seconds to plan", fontsize=9.5, color=LIGHT.ink)
    accuracy_axis(axes[0][0])
    for panel in axes[0]:
        panel.set_xlabel("Δ, GPUs", fontsize=9, color=LIGHT.ink)
        panel.set_xticks([milli / FULL_GPU_MILLI for milli in STEPS_MILLI])
    legend(figure, axes[0][1])
    return figure
