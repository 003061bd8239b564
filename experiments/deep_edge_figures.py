"""Draws one of Deep-Edge's figures.

    python experiments/deep_edge_figures.py deep_edge_epochs --full
    python experiments/deep_edge_figures.py deep_edge_table1

`deep_edge_epochs` (Figures 10 and 11): random experiments as in §V.C, where a TX2 and three Nanos run SIFT,
which has a deadline of 200 ms, and stressors. All policies decide by models fitted to as many data points as
the paper has; then the epoch is simulated with the true costs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

import numpy as np
from deep_edge_table1 import TABLE1
from matplotlib.figure import Figure
from recipe import Beside, draw_parts, legend, name_axes, new_figure, run
from recipe_table import Asked, FigureRecipe, Row, command_of, rows_where

from ekya.core.units import us_to_seconds
from ekya.fleet.papers.deep_edge.boosted import Models
from ekya.fleet.papers.deep_edge.testbed import learned
from ekya.fleet.papers.deep_edge.workload import (
    SEEDS,
    EdgeExperiment,
    EdgePhysics,
    edge_experiment,
)
from ekya.fleet.papers.registry import PLAYED, Terms
from ekya.fleet.policy.assignment import Decision
from ekya.fleet.policy.deep_edge.task import EdgePolicy
from ekya.fleet.policy.view import FleetView
from ekya.fleet.sim.engine import FleetEngine
from ekya.results.report.themes import LIGHT

Rows = Sequence[Row]

# Figures 10 and 11: an epoch's time in random experiments.

QUICK = 20
"""Number of experiments in the quick form; the paper's 120 otherwise."""

BLIND, KEPT, PAPER, OURS = "fair", "fair, deadlines kept", "deep-edge", "ours"


COMPARED = {
    "fair": "fair",
    "fair, deadlines kept": "fair-kept",
    "deep-edge": "deep-edge",
    "whole steps": "deep-edge-joint",
    "ours": "deep-edge-joint",
}
"""Names of the policies in figures, and in the registry."""


def policies(paper: Models, ours: Models) -> list[EdgePolicy]:
    """Returns the compared policies; all but the last use the same models and throttle no worker."""
    plain = Terms(estimates=paper.estimates, limits=paper.limits, shares_milli=())
    held = Terms(estimates=ours.estimates, limits=ours.limits)
    made = {shown: PLAYED[name](held if shown == "ours" else plain) for shown, name in COMPARED.items()}
    return [replace(policy, name=shown) for shown, policy in made.items()]


@dataclass(frozen=True, slots=True)
class Epoch:
    """Result of a policy on an experiment.

    Attributes:
        takes_s: average epoch.
        late: applications that missed their deadline.
        workers: number of workers that trained.
    """

    takes_s: float
    late: int
    workers: int


@dataclass(slots=True)
class _Remembers:
    """Wraps a policy and keeps its last decision."""

    policy: EdgePolicy
    last: Decision = field(default_factory=lambda: Decision(()))
    on_events: bool = True
    every_us: None = None

    @property
    def name(self) -> str:
        return self.policy.name

    def decide(self, view: FleetView) -> Decision:
        self.last = self.policy.decide(view)
        return self.last


def play_epoch(experiment: EdgeExperiment, policy: EdgePolicy) -> Epoch:
    """Simulates one experiment with the true costs.

    Raises:
        ValueError: the policy finds no worker.
    """
    asked, physics = _Remembers(policy), EdgePhysics(experiment.truth)
    outcome = FleetEngine(asked, physics, [experiment.job], experiment.places).run()
    (record,) = outcome.jobs.values()
    if record.ended_us is None:
        raise ValueError(f"{policy.name} finds no worker in experiment {experiment.seed}")
    (assignment,) = asked.last.assignments
    epoch_s = us_to_seconds(record.ended_us) / experiment.job.epochs
    return Epoch(epoch_s, record.late_apps, len(assignment.parts))


def play_epochs(asked: Asked) -> Iterator[Row]:
    """Simulates an epoch under every policy."""
    chosen = policies(learned(held_back=False), learned(held_back=True))
    for seed in SEEDS if asked.full else SEEDS[:QUICK]:
        experiment = edge_experiment(seed)
        for policy in chosen:
            epoch = play_epoch(experiment, policy)
            yield {
                "seed": seed,
                "policy": policy.name,
                "epoch_s": epoch.takes_s,
                "late": epoch.late,
                "workers": epoch.workers,
            }


def by_policy(rows: Rows) -> dict[str, Rows]:
    """Returns the rows of each policy, in the order of the experiments."""
    return {name: rows_where(rows, policy=name) for name in dict.fromkeys(row["policy"] for row in rows)}


def speedups(epochs: Mapping[str, Rows], policy: str, against: str = BLIND) -> list[float]:
    """Returns the speed-up of a policy's epoch in each experiment."""
    pairs = zip(epochs[policy], epochs[against], strict=True)
    return [other["epoch_s"] / own["epoch_s"] for own, other in pairs]


def beside_epochs(rows: Rows) -> Iterator[Beside]:
    """Yields epochs, speed-ups, missed deadlines and workers."""
    epochs = by_policy(rows)
    mean_s = {name: fmean(row["epoch_s"] for row in own) for name, own in epochs.items()}
    blind = {name: speedups(epochs, name) for name in epochs}
    kept = {name: speedups(epochs, name, KEPT) for name in epochs}

    def each(of: Callable[[str], float], form: str = "{:.2f}") -> dict[str, str]:
        return {name: form.format(of(name)) for name in epochs}

    yield Beside("average epoch, s", "", each(lambda name: mean_s[name], "{:.1f}"))
    yield Beside(
        "times shorter than under fairness, on average",
        "1.54 (deep-edge)",
        each(lambda name: fmean(blind[name])),
    )
    yield Beside(
        "average epoch under fairness over the average of this one",
        "1.54 (deep-edge)",
        each(lambda name: mean_s[BLIND] / mean_s[name]),
        below=False,
    )
    yield Beside(
        "times shorter than under fairness that keeps deadlines, on average",
        "",
        each(lambda name: fmean(kept[name])),
    )
    yield Beside(
        "experiments with a speedup above 50%",
        "more than half",
        each(lambda name: fmean(one > 1.5 for one in blind[name]), "{:.1%}"),
    )
    yield Beside(
        "the same beside fairness that keeps deadlines",
        "",
        each(lambda name: fmean(one > 1.5 for one in kept[name]), "{:.1%}"),
    )
    yield Beside("largest speedup", "200%", each(lambda name: max(blind[name]) - 1, "{:.1%}"))
    late = each(lambda name: sum(row["late"] for row in epochs[name]), "{}")
    yield Beside("deadlines missed", "0 (deep-edge)", late)
    workers = each(lambda name: fmean(row["workers"] for row in epochs[name]))
    yield Beside("workers that train, on average", "", workers)


def draw_epochs(rows: Rows) -> Figure:
    """Draws the distribution of epochs and of speed-ups."""
    epochs = by_policy(rows)
    figure, axes = new_figure(2, 1, 3.4)
    times, gains = axes[0]
    colours = dict(zip(epochs, LIGHT.streams, strict=False))
    for name, own in epochs.items():
        draw_parts(times, (row["epoch_s"] for row in own), color=colours[name], label=name, linewidth=1.6)
    name_axes(times, x="time of an epoch, s", y="part of the experiments", size=9.5)
    gains.hist(
        [speedups(epochs, name) for name in (PAPER, OURS)],
        bins=list(np.arange(0.6, max(speedups(epochs, OURS)) + 0.2, 0.2)),
        color=[colours[PAPER], colours[OURS]],
    )
    gains.axvline(1.54, color=LIGHT.ink, linewidth=1.0, linestyle=(0, (2, 2)))
    gains.annotate(
        "paper's average",
        (1.54, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(4, -10),
        textcoords="offset points",
        fontsize=8,
        color=LIGHT.ink,
    )
    name_axes(gains, x="how many times shorter than under fairness", y="experiments", size=9.5)
    legend(figure, times)
    return figure


FIGURES = {
    "deep_edge_epochs": FigureRecipe(
        "Epochs under Deep-Edge, ours, and fairness",
        "Deep-Edge, Figures 10 and 11: an epoch's time in {seeds} random experiments",
        play_epochs,
        beside_epochs,
        "The fairness scheduler also trains where applications then miss their deadlines; "
        "Deep-Edge must leave them out. Beside one that leaves them out too its epochs are shorter still. "
        "Ours holds such machines back to the share of their processor at which the deadline is kept; "
        "'whole steps' is ours without that.",
        draw_epochs,
    ),
    "deep_edge_table1": TABLE1,
}

main = command_of(FIGURES, "Draw one of Deep-Edge's figures.")

if __name__ == "__main__":
    run(main, "python experiments/deep_edge_figures.py deep_edge_epochs --full --json -")
