"""Measures what estimates of γ are worth, on recorded traces: Figure 11a (§6.4).

A trace of `ekya profile` has the true outcome of every γ, trained to its end in each window of each stream,
and the trials of the paper's profiler: five epochs on a tenth of the labels for every family, with Optimus'
curve through them. ``ekya``, the default, tries nothing and learns from past retrainings: in each window of
each stream, of the γ with the highest estimate. The truth is the accuracy on all objects of the window that
the retraining would serve.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from itertools import groupby
from statistics import fmean, median

import numpy as np
from matplotlib.figure import Figure
from played import TEN_CAMERAS
from recipe import Beside, draw_parts, legend, name_axes, new_figure, percent, points
from recipe_table import Asked, FigureRecipe
from scipy.stats import spearmanr

from ekya.api.simulation import open_trace
from ekya.core.profile import Profiler
from ekya.core.trace import Origin, RecordedStart, StreamWindow, Trace
from ekya.core.units import StreamId
from ekya.core.view import RetrainOption
from ekya.planning.profiling.estimate import estimate_as_in_the_paper, estimate_by_outcomes
from ekya.planning.profiling.history import Observation, ProfileHistory
from ekya.planning.profiling.outcomes import Outcomes, learn_outcomes
from ekya.results.report.themes import LIGHT
from ekya.simulation.trace.simulate import family_costs
from ekya.simulation.trace.stream import reported_accuracy, training_for

SPREAD = 0.05
"""γ are ranked where the truths of a window spread over more than this."""

PAPER_MEDIAN, PUBLIC_MEDIAN = 0.058, 0.059
"""Median absolute errors: paper §6.4, and the 936 predictions of the public implementation's own log."""


@dataclass(frozen=True, slots=True)
class Row:
    """A γ in one window of one stream, as a profiler estimates it.

    Attributes:
        data: name of the trace.
        start: last training of the model that is retrained: its window, -1 for the base, and its family.
        estimated: accuracy after it.
        gpu_s, true_gpu_s: of the retraining.
        trial_gpu_s: of the trials of the whole window.
    """

    data: str
    stream: str
    window: int
    start: str
    profiler: str
    gamma: str
    estimated: float
    true: float
    gpu_s: float
    true_gpu_s: float
    trial_gpu_s: float


def play_estimates(asked: Asked) -> Iterator[Row]:
    """Estimates every γ of every window, by both profilers."""
    for path in asked.traces or TEN_CAMERAS:
        trace = open_trace(path)
        for profiler in Profiler:
            yield from estimate_trace(path.stem, trace, profiler)


def estimate_trace(name: str, trace: Trace, profiler: Profiler) -> Iterator[Row]:
    """Yields the estimates of every window; the γ with the highest one is learnt from in later windows."""
    histories = {stream.stream: ProfileHistory() for stream in trace.streams}
    for index in range(1, trace.windows):
        outcomes = learn_outcomes(histories)
        for stream in trace.streams:
            found = [
                estimated
                for window in stream.windows[index : index + 1]
                for start in window.starts
                for estimated in estimate_window(
                    name, trace, stream.stream, window, start, profiler, outcomes
                )
            ]
            yield from (row for row, _ in found)
            if found:
                _, retrained = max(found, key=lambda one: (one[0].estimated, -one[0].gpu_s))
                histories[stream.stream] = histories[stream.stream].with_observation(retrained)


def estimate_window(
    name: str,
    trace: Trace,
    stream: StreamId,
    window: StreamWindow,
    start: RecordedStart,
    profiler: Profiler,
    outcomes: Outcomes,
) -> Iterator[tuple[Row, Observation]]:
    """Yields the estimates of a window, each with what its retraining would show.

    None where no trial began with that model, so that both profilers estimate the same.
    """
    origin, before = start.origin, reported_accuracy(start.standing, exact=False)
    costs = {cost.family: cost for cost in family_costs(trace)}
    of_model = [trial for trial in window.trials if trial.started_from == origin]
    trials = [trial for trial in of_model if trial.profiler is profiler is Profiler.PAPER]
    options: tuple[RetrainOption, ...] = ()
    if profiler is Profiler.PAPER:
        curves = [trial.curve for trial in trials if trial.curve is not None]
        options = estimate_as_in_the_paper(curves, trace.retrain_configs, window.training_crops)
    elif of_model:
        expected_error = partial(outcomes.expected_error, stream, serving=before)
        options = estimate_by_outcomes(
            trace.retrain_configs, costs.values(), window.training_crops, before, expected_error
        )
    for option in options:
        config = option.config
        training = training_for(window, config, origin)
        if training is None or training.started_from != origin:
            continue
        epochs = training.epochs[: config.epochs]
        best = max(reported_accuracy(epoch.standings[0], exact=False) for epoch in epochs)
        yield (
            Row(
                name,
                stream,
                window.window,
                name_start(origin),
                profiler,
                config.name,
                option.accuracy_after,
                epochs[-1].standings[0].served_accuracy,
                option.gpu_s,
                epochs[-1].gpu_s,
                sum(trial.gpu_s for trial in trials),
            ),
            Observation(
                window.window,
                config,
                best - before,
                epochs[-1].gpu_s,
                option.accuracy_after - before,
                window.validation_crops,
                before=before,
            ),
        )


def name_start(origin: Origin) -> str:
    """Returns a model's last training in a word."""
    family = origin.family
    words = [origin.trained_in, *(astuple(family) if family else ())]
    return "/".join(map(str, words))


def by_window(rows: Sequence[Row]) -> list[list[Row]]:
    """Returns the γ of each window together."""
    return [
        list(own)
        for _, own in groupby(rows, lambda row: (row.data, row.stream, row.window, row.start, row.profiler))
    ]


def rank_window(own: Sequence[Row]) -> float | None:
    """Returns the rank correlation of estimate and truth; None where the truths lie close together."""
    truth, told = np.array([row.true for row in own]), np.array([row.estimated for row in own])
    if np.ptp(truth) <= SPREAD:
        return None
    return float(spearmanr(told, truth).statistic) if np.ptp(told) > 0 else 0.0


def lose_by_choosing(own: Sequence[Row]) -> float:
    """Returns what taking the γ with the highest estimate loses; the cheapest of equals."""
    best = max(own, key=lambda row: (round(row.estimated, 9), -row.gpu_s))
    return max(row.true for row in own) - best.true


def cost_of_trials(rows: Sequence[Row]) -> float:
    """Returns the GPU-seconds of trials as a part of those of training every γ."""
    return sum(own[0].trial_gpu_s for own in by_window(rows)) / sum(row.true_gpu_s for row in rows)


NUMBERS: tuple[tuple[str, str, Callable[[Sequence[Row]], str]], ...] = (
    ("estimates", "", lambda rows: str(len(rows))),
    (
        "median absolute error",
        f"{PAPER_MEDIAN:.1%} (public log: {PUBLIC_MEDIAN:.1%})",
        lambda rows: percent(median(abs(row.estimated - row.true) for row in rows)),
    ),
    ("mean of estimate less truth", "", lambda rows: points(fmean(row.estimated - row.true for row in rows))),
    (
        "rank correlation in stream and window",
        "",
        lambda rows: (
            f"{fmean(rank for own in by_window(rows) if (rank := rank_window(own)) is not None):.2f}"
        ),
    ),
    (
        "lost by choosing the best estimate",
        "",
        lambda rows: points(fmean(lose_by_choosing(own) for own in by_window(rows))),
    ),
    ("cost, of training every γ", "about 1%", lambda rows: f"{cost_of_trials(rows):.2%}"),
    (
        "median error of GPU-seconds",
        "",
        lambda rows: percent(median(abs(row.gpu_s / row.true_gpu_s - 1) for row in rows)),
    ),
)


def by_profiler(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Returns the rows of each profiler that has any."""
    words = {Profiler.EKYA: "ekya", Profiler.PAPER: "the paper's version"}
    own = {words[kind]: [row for row in rows if row.profiler == kind] for kind in Profiler}
    return {name: some for name, some in own.items() if some}


def beside_estimates(rows: Sequence[Row]) -> Iterator[Beside]:
    """Yields errors, ranks, losses and costs of both profilers."""
    for what, paper, of in NUMBERS:
        yield Beside(what, paper, {name: of(own) for name, own in by_profiler(rows).items()})


def draw_estimates(rows: Sequence[Row]) -> Figure:
    """Draws the distribution of errors."""
    figure, axes = new_figure(1, 1, 3.4)
    panel = axes[0][0]
    for (name, own), colour in zip(by_profiler(rows).items(), LIGHT.streams, strict=False):
        draw_parts(panel, (abs(row.estimated - row.true) for row in own), color=colour, label=name)
    for name, middle, marker in (("paper", PAPER_MEDIAN, "o"), ("public log", PUBLIC_MEDIAN, "x")):
        panel.plot(middle, 0.5, marker, color=LIGHT.ink, label=f"{name} (median)")
    panel.set_xlim(0, 0.6)
    name_axes(panel, x="absolute error of the estimated accuracy", y="part of the estimates")
    legend(figure, panel)
    return figure


FIGURE11A = FigureRecipe(
    "Estimates of every γ",
    "Figure 11a: errors of estimates",
    play_estimates,
    beside_estimates,
    "What usually differs between γ ranks them better than trials on few labels; what changes until the "
    "retrained model serves is in every error.",
    draw_estimates,
    takes=("trace",),
)
