"""Mean accuracy of executed windows with exact estimates, planned again at every completion.

The 200 windows are those of ``problems.yaml``: ten streams on 0.2 to 1 GPU each, with a linear speed curve
and with one measured on a V100; nothing is trained. Beside the accuracy of each scheduler are an upper bound
of all plans (``experiments/optimum/bound.py``) and the factor of GPUs that `thief` and `uniform` need to
equal `ekya` on the same streams. `uniform` is in each window the best of the paper's six baselines, with γ
from two held-out streams; which one is best is not available beforehand.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

from matplotlib.figure import Figure
from optimum.bound import upper_bound
from optimum.executed import execute
from optimum.pareto import pareto_points, uniform_baselines
from optimum.problems import Problem, ProblemSet, load_problems
from played import STYLES, fewest_gpus
from recipe import Beside, accuracy_axis, legend, name_axes, new_figure, percent
from recipe_table import Asked, FigureRecipe

from ekya.core.view import WindowView
from ekya.planning.schedulers.registry import make_scheduler
from ekya.planning.schedulers.scheduler import Scheduler
from ekya.results.report.themes import LIGHT

PROBLEMS = Path(__file__).resolve().parent / "problems.yaml"

QUICK_EACH = 2
"""Windows of each combination in a quick run; ``--full`` takes all."""

HELD_OUT_SEED, HELD_OUT_STREAMS = 9000, 2
"""Seed and number of the streams that give the uniform baselines' γ; no problem uses them."""

TIMES_MORE = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0)
"""Factors of the GPUs tried for a scheduler to equal `ekya`."""

DRAWN = (
    ("ekya", STYLES["ekya"]),
    ("exact", (LIGHT.streams[4], "D-")),
    ("thief", STYLES["thief"]),
    ("uniform", (LIGHT.streams[2], "v--")),
    ("no_retrain", STYLES["no-retrain"]),
    ("bound", (LIGHT.ink, "--")),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One window.

    Attributes:
        seed, speed, gpus, gpus_per_stream: of the problem.
        ekya, serial, exact, thief, uniform, no_retrain: mean accuracy of the executed window.
        bound: upper bound of all plans.
        thief_times, uniform_times: factor of GPUs with which they equal `ekya`; None if the largest factor
            tried does not suffice.
    """

    seed: int
    speed: str
    gpus: float
    gpus_per_stream: float
    ekya: float
    serial: float
    exact: float
    thief: float
    uniform: float
    no_retrain: float
    bound: float
    thief_times: float | None
    uniform_times: float | None


@dataclass(frozen=True, slots=True)
class Combination:
    """Means over the windows with one speed curve and number of GPUs.

    Attributes:
        means: by the names of ``Row``.
        closed: part of the distance from `thief` to the bound that `ekya` closes.
        least_above: smallest lead of `ekya` over `thief` in any window.
        thief_times, uniform_times: medians; None where half of the windows have none.
    """

    speed: str
    gpus_per_stream: float
    windows: int
    means: dict[str, float]
    closed: float
    least_above: float
    thief_times: float | None
    uniform_times: float | None


MEASURES = ("ekya", "serial", "exact", "thief", "uniform", "no_retrain", "bound")


def uniform_schedulers(problems: ProblemSet) -> list[Scheduler]:
    """Returns the paper's uniform baselines (§6.1)."""
    held_out = problems.view(Problem(HELD_OUT_SEED, HELD_OUT_STREAMS, HELD_OUT_STREAMS, "linear"))
    high, low = pareto_points([stream.retrain_options for stream in held_out.streams])
    return list(uniform_baselines(high, low))


def measured(problems: ProblemSet, one: Problem, uniform: Sequence[Scheduler]) -> Row:
    """Executes one window under all schedulers."""
    view = problems.view(one)
    ekya, serial, exact, thief, no_retrain = (
        execute(view, make_scheduler(name)).score
        for name in ("ekya", "serial", "exact", "thief", "no-retrain")
    )
    return Row(
        seed=one.seed,
        speed=one.speed,
        gpus=one.gpus,
        gpus_per_stream=round(one.gpus / one.streams, 3),
        ekya=ekya,
        serial=serial,
        exact=exact,
        thief=thief,
        uniform=best(view, uniform),
        no_retrain=no_retrain,
        bound=upper_bound(view),
        thief_times=times_more(view, ekya, lambda more: best(more, [make_scheduler("thief")])),
        uniform_times=times_more(view, ekya, lambda more: best(more, uniform)),
    )


def best(view: WindowView, schedulers: Sequence[Scheduler]) -> float:
    """Returns the best score of these schedulers."""
    return max(execute(view, scheduler).score for scheduler in schedulers)


def times_more(view: WindowView, score: float, reach: Callable[[WindowView], float]) -> float | None:
    """Returns the factor of GPUs whose interpolated score first reaches ``score``; None if none does."""
    reached: list[tuple[float, float]] = []
    for times in TIMES_MORE:
        quanta = round(times * view.capacity_milli / view.quantum_milli)
        reached.append((times, reach(replace(view, capacity_milli=quanta * view.quantum_milli))))
        if reached[-1][1] >= score:
            break
    return fewest_gpus(reached, score)


def combinations(rows: Sequence[Row]) -> Iterator[Combination]:
    """Yields means, in the order of the rows."""
    for speed, per_stream in dict.fromkeys((row.speed, row.gpus_per_stream) for row in rows):
        own = [row for row in rows if (row.speed, row.gpus_per_stream) == (speed, per_stream)]
        means = {name: fmean(getattr(row, name) for row in own) for name in MEASURES}
        way = means["bound"] - means["thief"]
        yield Combination(
            speed=speed,
            gpus_per_stream=per_stream,
            windows=len(own),
            means=means,
            closed=(means["ekya"] - means["thief"]) / way if way > 0.0 else 1.0,
            least_above=min(row.ekya - row.thief for row in own),
            thief_times=median_of(row.thief_times for row in own),
            uniform_times=median_of(row.uniform_times for row in own),
        )


def median_of(times: Iterator[float | None]) -> float | None:
    """Returns the median, where None counts as larger than any number."""
    middle = median(float("inf") if one is None else one for one in times)
    return None if middle == float("inf") else middle


def beside_windows(rows: Sequence[Row]) -> Iterator[Beside]:
    """Yields means by number of GPUs and speed curve."""
    every = list(combinations(rows))
    for per_stream in sorted({one.gpus_per_stream for one in every}):
        own = [one for one in every if one.gpus_per_stream == per_stream]
        at = f"{per_stream:g} GPUs a stream"
        for name in ("uniform", "thief", "ekya", "bound"):
            yield Beside(f"{at}: {name}", "", {one.speed: percent(one.means[name]) for one in own})
        for what, of in (
            ("of the way from thief to the bound", lambda one: f"{one.closed:.0%}"),
            ("least above thief", lambda one: f"{100 * one.least_above:+.2f} points"),
            ("thief needs", lambda one: told(one.thief_times)),
            ("uniform needs", lambda one: told(one.uniform_times)),
        ):
            yield Beside(f"{at}: {what}", "", {one.speed: of(one) for one in own})


def told(times: float | None) -> str:
    """Formats a factor as ``1.4x the GPUs``."""
    return f"over {TIMES_MORE[-1]:g}x the GPUs" if times is None else f"{times:.1f}x the GPUs"


def draw_windows(rows: Sequence[Row]) -> Figure:
    """Draws accuracy by GPUs above, factors of GPUs below; a column for each speed curve."""
    every = list(combinations(rows))
    speeds = list(dict.fromkeys(one.speed for one in every))
    figure, axes = new_figure(len(speeds), 2, 2.7, foot=1.4, sharex=True, sharey="row")
    for column, speed in enumerate(speeds):
        own = [one for one in every if one.speed == speed]
        gpus = [one.gpus_per_stream for one in own]
        above, below = axes[0][column], axes[1][column]
        for name, (color, style) in DRAWN:
            values = [one.means[name] for one in own]
            above.plot(gpus, values, style, color=color, label=name.replace("_", "-"), markersize=5)
        name_axes(above, f"{speed} speed curve", size=10)
        for name in ("thief", "uniform"):
            color, style = dict(DRAWN)[name]
            times = [
                TIMES_MORE[-1] if t is None else t for t in (getattr(one, f"{name}_times") for one in own)
            ]
            below.plot(gpus, times, style, color=color, markersize=5)
        name_axes(below, x="GPUs a stream")
    accuracy_axis(axes[0][0])
    name_axes(axes[1][0], y=f"times ekya's GPUs ({TIMES_MORE[-1]:g}: or more)", size=9.5)
    legend(figure, axes[0][0])
    return figure


def a_few(problems: ProblemSet) -> list[Problem]:
    """Returns the first ``QUICK_EACH`` problems of each combination."""
    each = problems.seeds_each
    return [one for place, one in enumerate(problems.problems()) if place % each < QUICK_EACH]


def execute_windows(asked: Asked) -> Iterator[Row]:
    """Executes windows under every scheduler."""
    problems = load_problems(PROBLEMS)
    uniform = uniform_schedulers(problems)
    for one in problems.problems() if asked.full else a_few(problems):
        yield measured(problems, one, uniform)


EXECUTED = FigureRecipe(
    "Carrying out windows",
    "Windows carried out with exact estimates: ten streams, planned again at every completion",
    execute_windows,
    beside_windows,
    "Paper: 4x the GPUs for uniform to equal thief; here each window is alone, estimates hold, and uniform "
    "is the best of six baselines.",
    draw_windows,
)
