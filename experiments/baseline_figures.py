"""Ekya beside a half of itself, no retraining, kept models and a cloud: Figure 8, Table 4 and §6.5."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean

import numpy as np
from estimate import Estimate
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from played import (
    EKYA,
    NO_RETRAIN,
    ORACLE,
    PAPER_BASELINES,
    STYLES,
    THIEF,
    Data,
    Who,
    difference,
    draw_panels,
    draw_schedulers,
    mark_gpus,
    paper_baselines,
    play,
    told_difference,
)
from recipe import Beside, legend, new_figure, paper_mark, percent, points
from recipe_table import Row, row_where, rows_where

from ekya.core.units import seconds_to_us
from ekya.planning.schedulers.cloud_and_reuse import CELLULAR, LinkOrder, Network
from ekya.results.report.themes import LIGHT
from ekya.simulation.trace.generator_parameters import DEFAULT_PARAMETERS
from ekya.simulation.trace.simulate import Conditions

# Figure 8: `fixed-res` has the uniform baseline's shares and picks γ; `fixed-config` has the uniform
# baseline's γ and moves shares as the thief does. The paper plays ten streams on 4 GPUs; here are half and
# twice as many as well, since it says that both halves count most where GPUs are scarce.

HALVES_GPUS_PER_STREAM = (0.2, 0.4, 0.8)
FIXED_RES, FIXED_CONFIG = "fixed-res", "fixed-config"
UNIFORM = PAPER_BASELINES[2]


def play_halves(data: Data, full: bool, seed: int) -> Iterator[Row]:
    """Plays Ekya whole, without one half, and without both; ``gain`` is what each gains over `thief`."""
    uniform = paper_baselines(data)[UNIFORM]
    gamma = uniform.spec.partition(":gamma=")[2]
    players = {
        EKYA: Who(EKYA),
        THIEF: Who(THIEF),
        FIXED_RES: Who(f"{FIXED_RES}:inference=500"),
        FIXED_CONFIG: Who(f"{FIXED_CONFIG}:inference=500:gamma={gamma}"),
        UNIFORM: uniform,
    }
    for per_stream in HALVES_GPUS_PER_STREAM:
        under = Conditions(data.gpus(per_stream), seed=seed)
        reached = {name: play(data, who, under).by_trace for name, who in players.items()}
        for name, own in reached.items():
            yield {
                "data": data.name,
                "gpus": data.gpus(per_stream),
                "gpus_per_stream": per_stream,
                "scheduler": name,
                "accuracy": fmean(own),
                **difference("gain", own, reached[THIEF]),
            }


def beside_halves(rows: Sequence[Row], names: Sequence[str]) -> Iterator[Beside]:
    """Yields what is lost without each half."""
    halves = (("without adaptive shares", FIXED_RES), ("without adaptive γ", FIXED_CONFIG))
    for (what, without), each in product(halves, HALVES_GPUS_PER_STREAM):
        own = {data: row_where(rows, data=data, gpus_per_stream=each, scheduler=without) for data in names}
        yield Beside(
            f"{what}, {each:g} GPUs a stream: points",
            "a substantial loss" if each == 0.4 else "",
            {data: told_difference(row, "gain") for data, row in own.items()},
        )


def draw_halves(rows: Sequence[Row], names: Sequence[str]) -> Figure:
    """Draws a bar for each variant on each number of GPUs."""
    places = np.arange(len(HALVES_GPUS_PER_STREAM))
    lowest = min(row["accuracy"] for row in rows)

    def draw(panel: Axes, own: Sequence[Row]) -> None:
        schedulers = list(dict.fromkeys(row["scheduler"] for row in own))
        width = 0.8 / len(schedulers)
        for index, name in enumerate(schedulers):
            heights = [row["accuracy"] for row in rows_where(own, scheduler=name)]
            beside = places + (index - len(schedulers) / 2 + 0.5) * width
            bars = panel.bar(beside, heights, width * 0.92, color=STYLES[name][0], label=name)
            panel.bar_label(bars, [f"{100 * height:.0f}" for height in heights], fontsize=7.5, padding=1)
        panel.set_xticks(places, [f"{each:g}" for each in HALVES_GPUS_PER_STREAM])
        panel.grid(axis="x", visible=False)
        panel.set_ylim(max(0.0, lowest - 0.15), None)

    panels = [(data, rows_where(rows, data=data)) for data in names]
    return draw_panels([panels], draw, "GPUs a stream (paper: 0.4)")


# Serving an old model again instead of retraining (§6.5): in each window `reuse` serves the kept model
# whose labels had the most similar mix of classes. The paper plays ten streams on 8 GPUs. `oracle` is ours
# with the true profiles.

REUSE = "reuse"
REUSE_PLAYED = (ORACLE, EKYA, THIEF, REUSE, NO_RETRAIN)
REUSE_PAPER = {THIEF: 0.78, REUSE: 0.72}


def play_reuse(data: Data, full: bool, seed: int) -> Iterator[Row]:
    """Plays all schedulers on 0.8 GPUs a stream."""
    gpus = data.gpus(0.8)
    for name in REUSE_PLAYED:
        reached = Estimate.over_seeds(play(data, Who(name), Conditions(gpus, seed=seed)).by_trace)
        yield {
            "data": data.name,
            "gpus": gpus,
            "scheduler": name,
            "accuracy": reached.mean,
            "low": reached.low,
            "high": reached.high,
            "paper": REUSE_PAPER.get(name, ""),
        }


def beside_reuse(rows: Sequence[Row], names: Sequence[str]) -> Iterator[Beside]:
    """Yields each scheduler's accuracy."""

    def told(row: Row) -> str:
        low, high = row["low"], row["high"]
        return percent(row["accuracy"]) + ("" if low is None else f" ({percent(low)} to {percent(high)})")

    for name in REUSE_PLAYED:
        paper = f"{REUSE_PAPER[name]:.0%}" if name in REUSE_PAPER else ""
        own = {data: told(row_where(rows, data=data, scheduler=name)) for data in names}
        yield Beside(f"accuracy of {name}", paper, own)


def draw_reuse(rows: Sequence[Row], names: Sequence[str]) -> Figure:
    """Draws a bar for each scheduler."""

    def draw(panel: Axes, own: Sequence[Row]) -> None:
        schedulers, heights = zip(*((row["scheduler"], row["accuracy"]) for row in own), strict=True)
        bars = panel.bar(schedulers, heights, 0.7, color=[STYLES[name][0] for name in schedulers])
        numbers = [f"{100 * height:.1f}" for height in heights]
        panel.bar_label(bars, numbers, label_type="center", fontsize=8, color=LIGHT.page)
        panel.grid(axis="x", visible=False)
        for name, accuracy in REUSE_PAPER.items():
            paper_mark(panel, REUSE_PLAYED.index(name), accuracy, "_")

    panels = [(data, rows_where(rows, data=data)) for data in names]
    return draw_panels([panels], draw, "", height=2.8, foot=1.5)


# Investing: whether retraining ever costs. Labels and retrainings take from inference, most where GPUs are
# scarce. Generated traces are calm here: short windows that show few objects, good base models, little drift.
# Nothing was chosen on FIGURE_SEEDS.

FIGURE_SEEDS = (121, 122, 123, 124, 125)
FEW_GPUS_PER_STREAM = (0.0875, 0.1, 0.1125, 0.125, 0.15, 0.175, 0.2, 0.25, 0.3, 0.4, 0.8)

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


def play_investing(data: Data, full: bool, seed: int) -> Iterator[Row]:
    """Plays both schedulers on every number of GPUs; rows hold the mean and the least of all traces."""
    for per_stream in FEW_GPUS_PER_STREAM:
        under = Conditions(round(per_stream * data.streams, 3))
        ekya, no_retrain = (play(data, Who(name), under).by_trace for name in (EKYA, NO_RETRAIN))
        gains = [one - other for one, other in zip(ekya, no_retrain, strict=True)]
        yield {
            "data": data.name,
            "gpus_per_stream": per_stream,
            "traces": len(gains),
            "ekya": fmean(ekya),
            "no_retrain": fmean(no_retrain),
            "gain": fmean(gains),
            "least_gain": min(gains),
        }


def beside_investing(rows: Sequence[Row], names: Sequence[str]) -> Iterator[Beside]:
    """Yields the gain on each number of GPUs, and the least."""
    for per_stream in FEW_GPUS_PER_STREAM:
        own = rows_where(rows, gpus_per_stream=per_stream)
        yield Beside(f"{per_stream:g} GPUs a stream", "", {row["data"]: points(row["gain"]) for row in own})
    least = {
        name: min(rows_where(rows, data=name), key=lambda row: float(row["least_gain"])) for name in names
    }
    yield Beside("least of any trace", "", {name: points(row["least_gain"]) for name, row in least.items()})
    yield Beside("at GPUs a stream", "", {name: f"{row['gpus_per_stream']:g}" for name, row in least.items()})


def draw_investing(rows: Sequence[Row], names: Sequence[str]) -> Figure:
    """Draws both schedulers over GPUs a stream."""

    def draw(panel: Axes, own: Sequence[Row]) -> None:
        lines = [
            {"gpus_per_stream": row["gpus_per_stream"], "scheduler": who, "accuracy": row[key]}
            for row in own
            for who, key in ((EKYA, "ekya"), (NO_RETRAIN, "no_retrain"))
        ]
        draw_schedulers(panel, lines, "gpus_per_stream")
        mark_gpus(panel, (0.1, 0.2, 0.4, 0.8))

    return draw_panels([[(name, rows_where(rows, data=name)) for name in names]], draw, "GPUs a stream")


# Table 4: retraining in the cloud. Eight streams on 4 GPUs, windows of 400 s, the paper's sizes (160 Mb of
# video and a model of 398 Mb for each stream and window), and a cloud that retrains instantly with the most
# thorough γ. All GPUs here infer. The paper adds up all uploads and all downloads, which is the time of
# transfers that run in parallel. One after the other, a model is downloaded as soon as its own video is
# uploaded, and the first ones arrive much sooner. The bandwidth that the cloud needs to equal the thief is
# told for each link with the other one unlimited, so it is a lower bound. Recorded traces have other
# numbers of streams: they get the paper's share of each link and half a GPU a stream, and their windows are
# played as 400 s long.

CLOUD_WINDOW_S = 400.0
UNLIMITED_MBPS = 1e6
LEAST, MOST, CLOSE = 0.01, 1000.0, 1.01
"""Range of bandwidth factors that are tried, and the relative precision of the result."""


@dataclass(frozen=True, slots=True)
class Link:
    """Row of Table 4: the network, and the paper's accuracy and factors for it."""

    network: Network
    accuracy: float
    more_up: float
    more_down: float


LINKS = {
    "cellular": Link(CELLULAR, 0.685, 10.2, 3.8),
    "satellite": Link(Network(8.5, 15.0), 0.692, 5.9, 4.4),
    "cellular (2x)": Link(Network(10.2, 35.0), 0.712, 5.1, 1.9),
}
ORDERS = {LinkOrder.SHARED: "all at once", LinkOrder.IN_TURN: "in turn"}
PAPER_STREAMS, PAPER_EKYA = 8, 0.778
HERE = (EKYA, THIEF, NO_RETRAIN)


def least_factor(reached: Callable[[float], float], target: float) -> float | None:
    """Returns the smallest factor with which ``reached`` is the target, within 1%; None if none is."""
    low, high = LEAST, MOST
    if reached(high) < target:
        return None
    while high / low > CLOSE:
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if reached(middle) >= target else (middle, high)
    return high


def play_link(network: Network, reached: Callable[[Network], float], target: float) -> Row:
    """Returns the accuracy over a network, and the factors of bandwidth that reach a target."""
    up, down = network.uplink_mbps, network.downlink_mbps

    def over(up: float, down: float) -> float:
        return reached(replace(network, uplink_mbps=up, downlink_mbps=down))

    return {
        "uplink_mbps": up,
        "downlink_mbps": down,
        "accuracy": over(up, down),
        "more_of_both": least_factor(lambda factor: over(up * factor, down * factor), target),
        "more_uplink": least_factor(lambda factor: over(up * factor, UNLIMITED_MBPS), target),
        "more_downlink": least_factor(lambda factor: over(UNLIMITED_MBPS, down * factor), target),
    }


def play_cloud(data: Data, full: bool, seed: int) -> Iterator[Row]:
    """Computes Table 4 for one trace."""
    under = Conditions(data.gpus(0.5), window_us=seconds_to_us(CLOUD_WINDOW_S), seed=seed)

    def reached(of: Network) -> float:
        spec = f"cloud:up={of.uplink_mbps:g}:down={of.downlink_mbps:g}:order={of.order}"
        return play(data, Who(spec), under).accuracy

    here = {name: play(data, Who(name), under).accuracy for name in HERE}
    part = data.streams / PAPER_STREAMS
    row: Row = {}
    for (order, words), (name, link) in product(ORDERS.items(), LINKS.items()):
        up, down = link.network.uplink_mbps * part, link.network.downlink_mbps * part
        row = {
            "data": data.name,
            "who": f"{name}, {words}",
            **play_link(Network(up, down, order=order), reached, here[THIEF]),
            "paper_accuracy": link.accuracy,
            "paper_more_uplink": link.more_up,
            "paper_more_downlink": link.more_down,
        }
        yield row
    for name, accuracy in here.items():
        told = {"data": data.name, "who": name, "accuracy": accuracy}
        yield dict.fromkeys(row, "") | told | {"paper_accuracy": PAPER_EKYA if name == THIEF else ""}


def beside_cloud(rows: Sequence[Row], names: Sequence[str]) -> Iterator[Beside]:
    """Yields accuracy over each link, and the bandwidth that equals the thief."""

    def told(row: Mapping[str, float | None]) -> str:
        factors = (row[key] for key in ("more_of_both", "more_uplink", "more_downlink"))
        both, up, down = ("never" if one is None else f"{one:.1f}x" for one in factors)
        return f"{both} both (at least {up} up, {down} down)"

    for (order, words), (name, link) in product(ORDERS.items(), LINKS.items()):
        as_added_up = order is LinkOrder.SHARED
        own = {data: row_where(rows, data=data, who=f"{name}, {words}") for data in names}
        yield Beside(
            f"cloud over {name}, {words}: accuracy",
            percent(link.accuracy) if as_added_up else "",
            {data: percent(row["accuracy"]) for data, row in own.items()},
        )
        yield Beside(
            f"{name}, {words}: bandwidth that equals the thief",
            f"{link.more_up:g}x up, {link.more_down:g}x down" if as_added_up else "",
            {data: told(row) for data, row in own.items()},
            below=False,
        )
    for name in HERE:
        here = {data: percent(row_where(rows, data=data, who=name)["accuracy"]) for data in names}
        yield Beside(f"{name}: accuracy", percent(PAPER_EKYA) if name == THIEF else "", here)


def draw_cloud(rows: Sequence[Row], names: Sequence[str]) -> Figure:
    """Draws a bar for each way here and over each link."""
    figure, axes = new_figure(len(names), 1, 3.2, foot=2.2, sharey=True)
    figure.subplots_adjust(left=0.19)
    bars = [*HERE, *(f"{name}, {words}" for words in ORDERS.values() for name in LINKS)]
    for panel, data in zip(axes[0], names, strict=True):
        for place, who in enumerate(bars):
            row = row_where(rows, data=data, who=who)
            color = STYLES[who][0] if who in HERE else LIGHT.streams[3]
            drawn = panel.barh(place, row["accuracy"], 0.7, color=color)
            number = f"{100 * row['accuracy']:.1f}"
            panel.bar_label(drawn, [number], label_type="center", fontsize=8, color=LIGHT.page)
            if row["paper_accuracy"] != "":
                paper_mark(panel, row["paper_accuracy"], place, "|")
        panel.set_yticks(range(len(bars)), [who if who in HERE else f"cloud: {who}" for who in bars])
        panel.set_title(data, fontsize=10, loc="left", color=LIGHT.ink)
        panel.grid(axis="y", visible=False)
        panel.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        panel.set_xlabel("accuracy", fontsize=9, color=LIGHT.ink)
        panel.set_xlim(0, 0.95)
    axes[0][0].invert_yaxis()
    legend(figure, axes[0][0])
    return figure
