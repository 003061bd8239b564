"""Choosing γ against a fixed γ, on recorded traces, and where the difference comes from.

    python experiments/trace_figures.py gamma_choice
    ekya profile --seed 21 --out city21.parquet
    python experiments/trace_figures.py gamma_choice --trace city21.parquet --trace city22.parquet

A trace is recorded for each seed: the letters of a file's name are the data, the number at its end the seed
(0 without one). For each seed the fixed γ is the one that is best, for these data and GPUs, on the traces of
the other seeds, as an operator could have found it. The best on the shown traces themselves is known only
afterwards, and the fewer windows count, the more of its lead is luck. A fixed γ is Ekya with this γ as its
whole Γ: it tries no other family.

Without ``--trace`` those of ten cameras are played, on which nothing was tuned. The frames are the same with
each seed there, so a γ that is best on the others is nearly the best afterwards. Of the city and the video,
seeds for tuning are 0 to 5, and 0 is shipped.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from estimate import Estimate
from matplotlib.figure import Figure
from played import EKYA, EXACT, NO_RETRAIN, ORACLE, TEN_CAMERAS, accuracy_of, conditions
from recipe import Beside, accuracy_axis, legend, name_axes, new_figure
from recipe_table import Asked, FigureRecipe

from ekya.cli.simulate import open_trace
from ekya.core.trace import Trace
from ekya.planning.schedulers.options import gamma_word
from ekya.planning.schedulers.registry import make_scheduler
from ekya.results.report.themes import LIGHT
from ekya.simulation.trace.simulate import simulate

GPUS_PER_STREAM = (0.2, 0.4, 0.8)

FREE, EXACT_LABELS = "ekya, trials free", "ekya, every γ trained"
FIXED, HINDSIGHT, EVERY_GAMMA = "γ best on the others", "γ best here", "mean of all γ"


@dataclass(frozen=True, slots=True)
class Row:
    """Accuracy of one way to choose γ over one trace.

    Attributes:
        data, seed: of the trace.
        who: a scheduler, a way to plan with ``ekya``, or a fixed γ.
    """

    data: str
    seed: int
    gpus_per_stream: float
    who: str
    accuracy: float


def play_choices(asked: Asked) -> Iterator[Row]:
    """Plays every way to choose γ over the traces."""
    for path in asked.traces or TEN_CAMERAS:
        yield from play_trace(path)


def play_trace(path: Path) -> Iterator[Row]:
    """Yields the accuracy of every way to choose γ over a trace."""
    trace = open_trace(path)
    name = re.fullmatch(r"(.*?)(\d*)", path.stem)
    data, seed = (name[1].rstrip("-"), int(name[2] or 0)) if name else (path.stem, 0)
    for per_stream in GPUS_PER_STREAM:
        under = conditions(round(per_stream * len(trace.streams), 2))
        ways = {
            EKYA: (trace, EKYA, under),
            FREE: (without_cost_of_trials(trace), EKYA, under),
            EXACT_LABELS: (trace, EKYA, replace(under, error_sd=EXACT)),
            ORACLE: (trace, ORACLE, under),
            NO_RETRAIN: (trace, NO_RETRAIN, under),
        } | {
            gamma_word(gamma): (replace(trace, retrain_configs=(gamma,)), EKYA, under)
            for gamma in trace.retrain_configs
        }
        for who, (played, scheduler, conditions_of) in ways.items():
            reached = accuracy_of(simulate(played, make_scheduler(scheduler), conditions_of))
            yield Row(data, seed, per_stream, who, reached)


def without_cost_of_trials(trace: Trace) -> Trace:
    """Returns the trace with trials of γ that cost nothing."""
    return replace(
        trace,
        streams=tuple(
            replace(
                stream,
                windows=tuple(
                    replace(window, trials=tuple(replace(trial, gpu_s=0.0) for trial in window.trials))
                    for window in stream.windows
                ),
            )
            for stream in trace.streams
        ),
    )


def compared(rows: Sequence[Row]) -> dict[str, dict[int, float]]:
    """Returns accuracies by seed: of each way, of the γ chosen before and afterwards, and of all γ.

    The rows are of one data and one number of GPUs.
    """
    known: dict[str, dict[int, float]] = {}
    for row in rows:
        known.setdefault(row.who, {})[row.seed] = row.accuracy
    fixed = {who: of for who, of in known.items() if "/" in who}
    told = {who: of for who, of in known.items() if who not in fixed}
    seeds = list(told[EKYA])
    if len(seeds) > 1:
        told[FIXED] = {seed: best(fixed, [other for other in seeds if other != seed])[seed] for seed in seeds}
    told[HINDSIGHT] = {seed: best(fixed, [seed])[seed] for seed in seeds}
    told[EVERY_GAMMA] = {seed: fmean(of[seed] for of in fixed.values()) for seed in seeds}
    return told


def best(fixed: Mapping[str, Mapping[int, float]], seeds: Sequence[int]) -> Mapping[int, float]:
    """Returns the accuracies of the fixed γ that is best over these seeds."""
    return max(fixed.values(), key=lambda of: fmean(of[seed] for seed in seeds))


def beside_choices(rows: Sequence[Row]) -> Iterator[Beside]:
    """Yields what choosing gains over each other way, with 95% intervals over seeds."""
    places = dict.fromkeys((row.data, row.gpus_per_stream) for row in rows)
    told = {
        place: compared([row for row in rows if (row.data, row.gpus_per_stream) == place]) for place in places
    }
    for who in dict.fromkeys(who for of in told.values() for who in of if who != EKYA):
        gains = {
            f"{data}, {per_stream:g}": Estimate.over_seeds(
                [of[EKYA][seed] - accuracy for seed, accuracy in of[who].items()]
            ).in_points()
            for (data, per_stream), of in told.items()
            if who in of
        }
        yield Beside(f"points by which choosing is above {who}", "", gains, below=False)


def draw_choices(rows: Sequence[Row]) -> Figure:
    """Draws the accuracy of every way over GPUs, a panel for each data."""
    names = list(dict.fromkeys(row.data for row in rows))
    figure, axes = new_figure(len(names), 1, 3.4, foot=2.2, sharey=True)
    for panel, data in zip(axes[0], names, strict=True):
        by_gpus = {
            gpus: compared([row for row in rows if (row.data, row.gpus_per_stream) == (data, gpus)])
            for gpus in GPUS_PER_STREAM
        }
        for place, who in enumerate(by_gpus[GPUS_PER_STREAM[0]]):
            means = [fmean(told[who].values()) for told in by_gpus.values()]
            panel.plot(GPUS_PER_STREAM, means, "o-", color=LIGHT.streams[place % 8], label=who, markersize=4)
        name_axes(panel, data, "GPUs a stream")
    accuracy_axis(axes[0][0])
    legend(figure, axes[0][0], columns=4)
    return figure


GAMMA_CHOICE = FigureRecipe(
    "Ways to choose γ, on recorded traces",
    "Choosing γ beside a fixed γ",
    play_choices,
    beside_choices,
    "A fixed γ that is best on other seeds is known to an operator who has measured them all; the one that "
    "is best here is known afterwards only.",
    draw_choices,
    takes=("trace",),
)
