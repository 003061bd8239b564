"""Gap of Deep-Edge's solvers to exhaustive search, on small clusters.

    python experiments/deep_edge_exhaustive.py
    python experiments/deep_edge_exhaustive.py --full

A TX2 and two Nanos, loaded as in the 120 experiments. The search uses the true costs and tries every set of
workers with every batch size, and shares too where solvers may hold workers back. It is compared with solvers
that use the true costs, which shows the loss of the algorithm, and with solvers that use the fitted models,
which shows the loss of the models.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from deep_edge_played import played
from matplotlib.figure import Figure
from recipe import RESULTS, Beside, Finding, Full, Json, Out, channel, legend, new_figure, percent, run

from ekya.fleet.fitting.judged import Models
from ekya.fleet.papers.deep_edge import laws
from ekya.fleet.papers.deep_edge.compared import Fair, Force
from ekya.fleet.papers.deep_edge.devices import NANO, TX2
from ekya.fleet.papers.deep_edge.laws import as_it_is
from ekya.fleet.papers.deep_edge.testbed import KNOWN, learned
from ekya.fleet.papers.deep_edge.workload import SEEDS, edge_experiment
from ekya.fleet.policy.deep_edge.heuristic import Heuristic
from ekya.fleet.policy.deep_edge.joint import Joint
from ekya.fleet.policy.deep_edge.policy import EdgePolicy
from ekya.results.report.themes import LIGHT

KINDS = (TX2, NANO, NANO)
QUICK = 8
SHARES = (1000, 800, 600, 400, 200)
"""Shares that a worker may be held to, the same for the search and for our solver."""

FREE, HELD = "exhaustive", "exhaustive with shares"


@dataclass(frozen=True, slots=True)
class Case:
    """A solver to compare.

    Attributes:
        policy: solver and its estimates.
        knows: whether it sees the true states.
        against: name of the search that it is compared with.
    """

    policy: EdgePolicy
    knows: bool
    against: str


def cases(paper: Models, ours: Models) -> list[Case]:
    """Returns the solvers, the searches first."""

    def knows(name: str, solver: Callable[..., object], against: str) -> Case:
        return Case(EdgePolicy(name, solver, laws, KNOWN), True, against)

    held = Joint(SHARES)
    return [
        knows(FREE, Force(), FREE),
        knows(HELD, Force((), SHARES), HELD),
        knows("fair, deadlines kept", Fair(keeps_deadlines=True), FREE),
        knows("deep-edge", Heuristic(), FREE),
        knows("ours", held, HELD),
        Case(EdgePolicy("deep-edge, by models", Heuristic(), paper.estimates, paper.limits), False, FREE),
        Case(EdgePolicy("ours, by models", held, ours.estimates, ours.limits), False, HELD),
    ]


def found(seeds: Sequence[int], compared: Sequence[Case], took_s: Mapping[str, Sequence[float]]) -> Finding:
    """Returns the table, the figure and the gap of each solver to its search."""
    above = {
        case.policy.name: [
            own / best - 1 for own, best in zip(took_s[case.policy.name], took_s[case.against], strict=True)
        ]
        for case in compared
    }
    return Finding(
        name="deep_edge_exhaustive",
        title=f"Deep-Edge beside exhaustive search: a TX2 and two Nanos, {len(seeds)} experiments",
        rows=[
            {"seed": seed, **{name: own[place] for name, own in took_s.items()}}
            for place, seed in enumerate(seeds)
        ],
        beside=[
            Beside("average epoch, s", "", {name: f"{fmean(own):.1f}" for name, own in took_s.items()}),
            Beside(
                "above its search, average", "", {name: percent(fmean(own)) for name, own in above.items()}
            ),
            Beside("above its search, at most", "", {name: percent(max(own)) for name, own in above.items()}),
        ],
        why="Who knows the laws loses only what the algorithm leaves: the paper's shards end in smaller "
        "batches that it does not count. By models a worker near its deadline is left out, or held back "
        "further, for their error.",
        figure=_drawn(above),
    )


def _drawn(above: Mapping[str, Sequence[float]]) -> Figure:
    figure, axes = new_figure(1, 1, 3.2)
    (panel,) = axes[0]
    for colour, (name, own) in zip(LIGHT.streams, list(above.items())[2:], strict=False):
        ordered = 100 * np.sort(own)
        parts = np.arange(1, len(ordered) + 1) / len(ordered)
        panel.step(ordered, parts, where="post", color=colour, label=name, linewidth=1.6)
    panel.set_xlabel("epoch longer than the search's, %", color=LIGHT.ink, fontsize=9.5)
    panel.set_ylabel("part of the experiments", color=LIGHT.ink, fontsize=9.5)
    panel.set_xscale("symlog", linthresh=1)
    panel.set_xlim(left=-0.2)
    legend(figure, panel)
    return figure


def main(full: Full = False, out: Out = RESULTS, json_to: Json = None) -> None:
    """Compare Deep-Edge's solvers and ours with exhaustive search, on clusters of three workers."""
    seeds = SEEDS[:30] if full else SEEDS[:QUICK]
    with channel(json_to, out) as told:
        told.console.print("fitting the models", highlight=False)
        compared = cases(learned(held_back=False), learned(held_back=True))
        took_s: dict[str, list[float]] = {case.policy.name: [] for case in compared}
        with told.steps("experiments", len(seeds)) as step:
            for seed in seeds:
                experiment = edge_experiment(seed, KINDS)
                true = as_it_is(experiment.places, experiment.truth)
                for case in compared:
                    epoch = played(experiment, case.policy, true if case.knows else None)
                    took_s[case.policy.name].append(epoch.takes_s)
                step()
        told.publish(found(seeds, compared, took_s))


if __name__ == "__main__":
    run(
        main,
        "python experiments/deep_edge_exhaustive.py",
        "python experiments/deep_edge_exhaustive.py --json -",
    )
