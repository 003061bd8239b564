"""Simulation of traces under schedulers, for the recipes: traces, uniform baselines and results."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from estimate import Estimate
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from optimum.pareto import INFERENCE_PARTS_MILLI, pareto_points, profiles
from recipe import Beside, accuracy_axis, legend, new_figure
from recipe_table import Asked, FigureRecipe, Row

from ekya.api.simulation import open_trace
from ekya.core.configs import RetrainConfig
from ekya.core.errors import UserError
from ekya.core.profile import Profiler
from ekya.core.trace import Trace
from ekya.planning.schedulers.registry import make_scheduler
from ekya.planning.schedulers.scheduler import gamma_word
from ekya.results.report.themes import LIGHT
from ekya.simulation.trace.generate import generate_trace
from ekya.simulation.trace.generator_parameters import DEFAULT_PARAMETERS, GeneratorParameters
from ekya.simulation.trace.simulate import Conditions, Simulated, simulate

HELD_OUT_SEED = 9000
"""Seed of the two streams that give the uniform baselines' γ; no recipe plays them."""

GENERATED = "generated"

PAPER_SIZE = Path(__file__).resolve().parent / "traces/paper_size"
TEN_CAMERAS = tuple(sorted(PAPER_SIZE.glob("*.parquet")))
"""Recordings of ``ten_cameras.yaml``, one of each seed."""

SEEDS = 5
"""Number of generated traces of a figure with intervals."""

EXACT = 0.0
"""``error_sd`` of estimates that are the truth. Without one, estimates are made as a run makes them."""


@dataclass(frozen=True, slots=True)
class Data:
    """Group of traces; means are taken over them.

    Attributes:
        name: in figures and tables.
        traces: one for each seed, or the recorded one.
        held_out: trace that gives the γ of the uniform baselines. A recorded trace has no streams to spare:
            it is used itself, which favours the baselines.
    """

    name: str
    traces: tuple[Trace, ...]
    held_out: Trace

    @property
    def streams(self) -> int:
        """Number of streams in each trace."""
        return len(self.traces[0].streams)

    def gpus(self, per_stream: float) -> float:
        """Returns the GPUs of all streams."""
        return round(per_stream * self.streams, 2)

    def first(self, streams: int) -> "Data":
        """Returns the data with the first ``streams`` streams."""
        return replace(
            self, traces=tuple(replace(trace, streams=trace.streams[:streams]) for trace in self.traces)
        )


def over_traces(
    shows: str,
    title: str,
    data: Callable[[bool, int], Data],
    rows: Callable[[Data, bool, int], Iterator[Row]],
    beside: Callable[[Sequence[Row], Sequence[str]], Iterable[Beside]],
    why: str,
    draw: Callable[[Sequence[Row], Sequence[str]], Figure],
    traces: bool = True,
) -> FigureRecipe[Row]:
    """Returns the plan of a figure that is drawn from played traces.

    Args:
        shows, title, why: see ``FigureRecipe``.
        data: generated traces, from whether they have the paper's size, and a seed.
        rows: of one data, from whether it is the paper's size, and a seed.
        beside: the paper's numbers with ours, from the rows of all data and their names.
        draw: from the rows of all data and their names.
        traces: whether recorded traces are played as well.
    """

    def play_data(asked: Asked) -> Iterator[Row]:
        for one in (data(asked.full, asked.seed), *recorded(asked.traces)):
            yield from rows(one, asked.full, asked.seed)

    def names(found: Sequence[Row]) -> list[str]:
        return list(dict.fromkeys(row["data"] for row in found if "data" in row))

    return FigureRecipe(
        shows,
        title,
        play_data,
        lambda found: beside(found, names(found)),
        why,
        lambda found: draw(found, names(found)),
        ("seed", "trace") if traces else ("seed",),
    )


def generated(
    streams: int, windows: int, seeds: Sequence[int], parameters: GeneratorParameters = DEFAULT_PARAMETERS
) -> Data:
    """Returns generated traces with the paper's spread, one for each seed."""
    traces = tuple(generate_trace(seed, streams, windows, parameters) for seed in seeds)
    return Data(GENERATED, traces, generate_trace(HELD_OUT_SEED, 2, windows, parameters))


def recorded(paths: Sequence[Path] | None) -> list[Data]:
    """Returns traces that ``ekya profile`` recorded, each named by its file.

    Raises:
        UserError: there is no such trace, or two have one name.
    """
    names = [path.stem for path in paths or ()]
    twice = next((name for name in names if names.count(name) > 1 or name == GENERATED), None)
    if twice is not None:
        raise UserError(f"--trace: {twice} is taken already as a name; rename one of the files")
    return [_recorded(path) for path in paths or ()]


def _recorded(path: Path) -> Data:
    trace = open_trace(path)
    return Data(path.stem, (trace,), trace)


@dataclass(frozen=True, slots=True)
class Who:
    """Scheduler of a run.

    Attributes:
        spec: the scheduler, as ``ekya simulate`` names it.
        checkpoints: whether models are served before their retraining is done. The paper has this as a part
            of Ekya (§5) and not of its baselines.
    """

    spec: str
    checkpoints: bool = True


EKYA, THIEF, PAPER, NO_RETRAIN, ORACLE = "ekya", "thief", "paper", "no-retrain", "oracle"
PAPER_BASELINES = (
    "uniform (Config 1, 50%)",
    "uniform (Config 2, 90%)",
    "uniform (Config 2, 50%)",
    "uniform (Config 2, 30%)",
)
CHECKPOINTING = "uniform (Config 1, 50%) with checkpoints"

RULES = ("uniform:inference=300", "uniform:inference=500", "uniform:inference=700", "uniform:inference=900")
"""One line each: equal shares, a part of each for inference, and the dearest γ that the rest can finish."""

OURS: Mapping[str, Who] = {name: Who(name) for name in (EKYA, THIEF, PAPER)}
"""Our default, the paper's search with our estimates, and the paper's search with its micro-profiler."""


def ours(data: Data) -> dict[str, Who]:
    """Returns ``OURS`` as far as data show them: some traces have no trials of the paper's profiler."""
    trials = [
        trial.profiler
        for trace in data.traces
        for stream in trace.streams
        for window in stream.windows
        for trial in window.trials
    ]
    return {name: who for name, who in OURS.items() if name != PAPER or Profiler.PAPER in trials}


def shown(rows: Sequence[Mapping[str, Any]], names: Sequence[str], scheduler: str) -> list[str]:
    """Returns the names of the data on which a scheduler was played."""
    return [
        name for name in names if any((row["data"], row["scheduler"]) == (name, scheduler) for row in rows)
    ]


def paper_baselines(data: Data) -> dict[str, Who]:
    """Returns the paper's uniform baselines (§6.1, Figure 6), by the names that it gives them."""
    high, low = pareto_points(list(profiles(data.held_out)))
    few, half, most = INFERENCE_PARTS_MILLI
    kinds = ((half, high), (most, low), (half, low), (few, low))
    return {name: _uniform(*kind) for name, kind in zip(PAPER_BASELINES, kinds, strict=True)}


def _uniform(part_milli: int, config: RetrainConfig) -> Who:
    return Who(f"uniform:inference={part_milli}:gamma={gamma_word(config)}", checkpoints=False)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a scheduler over data.

    Attributes:
        accuracy: mean over traces, streams and windows from 1 on; in window 0 no retraining can be done.
        by_trace: the same for each trace.
        played: all simulations.
    """

    accuracy: float
    by_trace: tuple[float, ...]
    played: tuple[Simulated, ...]


def play(data: Data, who: Who, under: Conditions) -> Outcome:
    """Simulates a scheduler over all traces of the data; the seed rises by one from trace to trace."""
    if not who.checkpoints:
        under = replace(under, checkpoint_delay_us=None)
    under = under.with_preset(who.spec)
    runs = tuple(
        simulate(trace, make_scheduler(who.spec), replace(under, seed=under.seed + place))
        for place, trace in enumerate(data.traces)
    )
    means = tuple(accuracy_of(run) for run in runs)
    return Outcome(fmean(means), means, runs)


def accuracy_of(run: Simulated) -> float:
    """Returns the mean over streams and windows from 1 on."""
    return fmean(fmean(windows[1:] or windows) for windows in run.accuracy.values())


STYLES: Mapping[str, tuple[str, str]] = {
    "ekya": (LIGHT.streams[0], "o-"),
    "thief": (LIGHT.streams[1], "s-"),
    "paper": (LIGHT.streams[1], "s:"),
    PAPER_BASELINES[0]: (LIGHT.streams[2], "v--"),
    PAPER_BASELINES[1]: (LIGHT.streams[3], "^--"),
    PAPER_BASELINES[2]: (LIGHT.streams[5], "D--"),
    PAPER_BASELINES[3]: (LIGHT.streams[6], "P--"),
    CHECKPOINTING: (LIGHT.streams[2], "v:"),
    "no-retrain": (LIGHT.streams[7], "x:"),
    "oracle": (LIGHT.ink, "*:"),
    "fixed-res": (LIGHT.streams[2], "v--"),
    "fixed-config": (LIGHT.streams[3], "^--"),
    "reuse": (LIGHT.streams[4], "D--"),
    "cloud": (LIGHT.streams[3], "^--"),
}
"""Colour and line of each scheduler, the same in all figures."""


def draw_schedulers(axes: Axes, rows: Sequence[Mapping[str, Any]], x: str) -> None:
    """Draws a line for each scheduler of the rows: ``accuracy`` over ``x``."""
    for scheduler, (color, style) in STYLES.items():
        own = [row for row in rows if row["scheduler"] == scheduler]
        if own:
            line = [[row[key] for row in own] for key in (x, "accuracy")]
            axes.plot(*line, style, color=color, label=scheduler, markersize=5)


def draw_panels(
    lines: Sequence[Sequence[tuple[str, Sequence[Row]]]],
    draw: Callable[[Axes, Sequence[Row]], None],
    x: str,
    *,
    height: float = 3.0,
    foot: float = 1.7,
    columns: int = 8,
    y: str = "accuracy",
    title_size: float = 10,
    sharey: bool | str = "row",
) -> Figure:
    """Draws panels of accuracy in lines, each from its title and its rows, with one legend."""
    figure, axes = new_figure(len(lines[0]), len(lines), height, foot, sharey=sharey)
    for line, panels in zip(axes, lines, strict=True):
        for panel, (title, rows) in zip(line, panels, strict=True):
            draw(panel, rows)
            panel.set_title(title, fontsize=title_size, loc="left", color=LIGHT.ink)
        accuracy_axis(line[0], y)
    for panel in axes[-1]:
        panel.set_xlabel(x, fontsize=9, color=LIGHT.ink)
    legend(figure, axes[0][0], columns)
    return figure


def mark_gpus(panel: Axes, places: Sequence[float], streams: int = 0) -> None:
    """Marks GPUs a stream on a logarithmic axis, with those in all behind them if there are ``streams``."""
    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_locator(FixedLocator(places))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:g} ({value * streams:g})" if streams else f"{value:g}")
    )


def difference(name: str, own: Sequence[float], other: Sequence[float]) -> Row:
    """Returns the columns of how far ``own`` is above ``other``, trace by trace, with the 95% interval."""
    of = Estimate.over_seeds([one - another for one, another in zip(own, other, strict=True)])
    return {name: of.mean, "low": of.low, "high": of.high}


def told_difference(row: Row, name: str) -> str:
    """Formats the columns of ``difference`` in points."""
    return Estimate(row[name], row["low"], row["high"]).in_points()


def fewest_gpus(points: Sequence[tuple[float, float]], accuracy: float) -> float | None:
    """Returns the GPUs at which straight lines through (GPUs, accuracy) first reach an accuracy, or None."""
    before: tuple[float, float] | None = None
    for gpus, reached in points:
        if reached >= accuracy:
            if before is None:
                return gpus
            part = (accuracy - before[1]) / (reached - before[1])
            return before[0] + part * (gpus - before[0])
        before = (gpus, reached)
    return None
