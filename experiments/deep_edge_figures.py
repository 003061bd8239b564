"""Draws one of Deep-Edge's figures.

    python experiments/deep_edge_figures.py deep_edge_epochs --full
    python experiments/deep_edge_figures.py deep_edge_table1

`deep_edge_epochs` (Figures 10 and 11): random experiments as in §V.C, where a TX2 and three Nanos run SIFT,
which has a deadline of 200 ms, and stressors. All policies decide by models fitted to as many data points as
the paper has; then the epoch is simulated with the true costs.

`deep_edge_table1`: as many data points as the paper has of each kind of machine, split as in the paper;
scikit-learn's gradient boosting in place of H2O's AutoML, which also selected gradient boosting.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

import numpy as np
from matplotlib.figure import Figure
from recipe import Beside, draw_parts, legend, name_axes, new_figure, paper_mark, run
from recipe_table import Asked, FigureRecipe, Row, command_of, rows_where

from ekya.core.units import us_to_seconds
from ekya.fleet.papers.deep_edge.boosted import Models, split
from ekya.fleet.papers.deep_edge.laws import NANO, PI, TX2
from ekya.fleet.papers.deep_edge.testbed import judged_parameter_server, learned
from ekya.fleet.papers.deep_edge.workload import (
    SEEDS,
    EdgeExperiment,
    EdgePhysics,
    edge_experiment,
    pi_points,
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


# Table I: errors of the estimators on held-out points.

TABLE1 = {
    (NANO, "EstComputeTime"): (1.668, 2.074),
    (NANO, "EstUpdateTime"): (9.617, 7.383),
    (NANO, "EstState gpu"): (1.498, 3.9),
    (NANO, "EstState cpu"): (5.21, 4.53),
    (NANO, "EstState mem"): (1.508, 1.306),
    (NANO, "EstExecTime"): (1.73, 0.21),
    (TX2, "EstComputeTime"): (5.916, 6.721),
    (TX2, "EstUpdateTime"): (7.721, 6.598),
    (TX2, "EstState gpu"): (0.509, 0.479),
    (TX2, "EstState cpu"): (6.294, 5.468),
    (TX2, "EstState mem"): (0.894, 0.704),
    (TX2, "EstExecTime"): (1.48, 0.12),
    (PI, "EstState cpu"): (2.32, 1.58),
    (PI, "EstState mem"): (1.70, 1.15),
}
"""MAPE and its deviation, in percent."""

AVERAGE = 3.433
"""Average MAPE of all functions, from the paper's text."""


def judge_estimators(_: Asked) -> Iterator[Row]:
    """Yields the errors of models fitted to the paper's number of points."""
    for row in (*learned(held_back=False).rows, *judged_parameter_server(*split(pi_points()))):
        yield {
            "kind": row.kind,
            "function": row.function,
            "train": row.train,
            "test": row.test,
            "mape": row.mape,
            "deviation": row.deviation,
            "paper_mape": TABLE1[row.kind, row.function][0],
        }


def beside_estimators(rows: Rows) -> Iterator[Beside]:
    """Yields Table I."""
    for row in rows:
        yield Beside(
            f"{row['kind']} {row['function']}, MAPE in % ({row['train']}/{row['test']} points)",
            "{:g} ± {:g}".format(*TABLE1[row["kind"], row["function"]]),
            {"ours": f"{row['mape']:.2f} ± {row['deviation']:.2f}"},
            below=False,
        )
    yield Beside("average of all", f"{AVERAGE}", {"ours": f"{fmean(row['mape'] for row in rows):.3f}"})


def draw_estimators(rows: Rows) -> Figure:
    """Draws each error, with the paper's."""
    figure, axes = new_figure(1, 1, 3.6)
    (panel,) = axes[0]
    places = np.arange(len(rows))
    panel.bar(places, [row["mape"] for row in rows], 0.62, color=LIGHT.streams[0])
    for place, row in zip(places, rows, strict=True):
        paper_mark(panel, float(place), row["paper_mape"], "_")
    names = [f"{row['kind']}\n{row['function'].removeprefix('Est').replace('Time', '')}" for row in rows]
    panel.set_xticks(places, names, fontsize=7.5)
    name_axes(panel, y="MAPE, %", size=9.5)
    panel.legend(frameon=False, fontsize=8.5)
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
    "deep_edge_table1": FigureRecipe(
        "Estimators",
        "Deep-Edge, Table I: errors of the estimators on points that they have not learned from",
        judge_estimators,
        beside_estimators,
        "What is measured here has an error by design: 2% of a compute time, 6% of an update, 3% of "
        "a CPU's and 1% of a GPU's and a memory's utilisation; no estimator can be nearer than that. SIFT's "
        "time on a Nano rises steeply where the CPU is nearly full: 3% of that are more than 3% of the time.",
        draw_estimators,
    ),
}

main = command_of(FIGURES, "Draw one of Deep-Edge's figures.")

if __name__ == "__main__":
    run(main, "python experiments/deep_edge_figures.py deep_edge_epochs --full --json -")
