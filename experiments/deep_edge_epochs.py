"""Duration of an epoch under Deep-Edge and under fairness (Figures 10 and 11 of Deep-Edge).

    python experiments/deep_edge_epochs.py
    python experiments/deep_edge_epochs.py --full

Random experiments as in §V.C: a TX2 and three Nanos run SIFT, which has a deadline of 200 ms, and stressors.
All policies decide by models fitted to as many data points as the paper has; then the epoch is simulated
with the true costs.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np
from deep_edge_played import Epoch, played, policies
from matplotlib.figure import Figure
from recipe import RESULTS, Beside, Finding, Full, Json, Out, channel, legend, new_figure, percent, run

from ekya.fleet.papers.deep_edge.testbed import learned
from ekya.fleet.papers.deep_edge.workload import SEEDS, edge_experiment
from ekya.results.report.themes import LIGHT

QUICK = 20
"""Number of experiments in the quick form; the paper's 120 otherwise."""

BLIND, KEPT, PAPER, OURS = "fair", "fair, deadlines kept", "deep-edge", "ours"

Epochs = Mapping[str, Sequence[Epoch]]
"""Epochs of each policy, in the order of the experiments."""


def speedups(epochs: Epochs, policy: str, against: str = BLIND) -> list[float]:
    """Returns the speed-up of a policy's epoch in each experiment."""
    return [other.takes_s / own.takes_s for own, other in zip(epochs[policy], epochs[against], strict=True)]


def found(seeds: Sequence[int], epochs: Epochs) -> Finding:
    """Returns the table, the figure and the paper's numbers beside ours."""
    rows = [
        {
            "seed": seed,
            "policy": name,
            "epoch_s": own[place].takes_s,
            "late": own[place].late,
            "workers": own[place].workers,
        }
        for place, seed in enumerate(seeds)
        for name, own in epochs.items()
    ]
    return Finding(
        name="deep_edge_epochs",
        title=f"Deep-Edge, Figures 10 and 11: an epoch's time in {len(seeds)} random experiments",
        rows=rows,
        beside=_beside(epochs),
        why="The fairness scheduler also trains where applications then miss their deadlines; "
        "Deep-Edge must leave them out. Beside one that leaves them out too its epochs are shorter still. "
        "Ours holds such machines back to the share of their processor at which the deadline is kept; "
        "'whole steps' is ours without that.",
        figure=_drawn(epochs),
        more={"decide_ms": {name: 1000 * fmean(one.decide_s for one in own) for name, own in epochs.items()}},
    )


def _beside(epochs: Epochs) -> list[Beside]:
    mean_s = {name: fmean(one.takes_s for one in own) for name, own in epochs.items()}
    blind = {name: speedups(epochs, name) for name in epochs}
    kept = {name: speedups(epochs, name, KEPT) for name in epochs}

    def each(numbers: Mapping[str, float], digits: int = 2) -> dict[str, str]:
        return {name: f"{number:.{digits}f}" for name, number in numbers.items()}

    return [
        Beside("average epoch, s", "", each(mean_s, 1)),
        Beside(
            "times shorter than under fairness, on average",
            "1.54 (deep-edge)",
            each({name: fmean(ratios) for name, ratios in blind.items()}),
        ),
        Beside(
            "average epoch under fairness over the average of this one",
            "1.54 (deep-edge)",
            each({name: mean_s[BLIND] / own_s for name, own_s in mean_s.items()}),
            below=False,
        ),
        Beside(
            "times shorter than under fairness that keeps deadlines, on average",
            "",
            each({name: fmean(ratios) for name, ratios in kept.items()}),
        ),
        Beside(
            "experiments with a speedup above 50%",
            "more than half",
            {name: percent(fmean(one > 1.5 for one in ratios)) for name, ratios in blind.items()},
        ),
        Beside(
            "the same beside fairness that keeps deadlines",
            "",
            {name: percent(fmean(one > 1.5 for one in ratios)) for name, ratios in kept.items()},
        ),
        Beside("largest speedup", "200%", {name: percent(max(ratios) - 1) for name, ratios in blind.items()}),
        Beside(
            "deadlines missed",
            "0 (deep-edge)",
            {name: str(sum(one.late for one in own)) for name, own in epochs.items()},
        ),
        Beside(
            "workers that train, on average",
            "",
            each({name: fmean(one.workers for one in own) for name, own in epochs.items()}),
        ),
    ]


def _drawn(epochs: Epochs) -> Figure:
    figure, axes = new_figure(2, 1, 3.4)
    times, gains = axes[0]
    colours = dict(zip(epochs, LIGHT.streams, strict=False))
    for name, own in epochs.items():
        ordered = np.sort([one.takes_s for one in own])
        parts = np.arange(1, len(ordered) + 1) / len(ordered)
        times.step(ordered, parts, where="post", color=colours[name], label=name, linewidth=1.6)
    times.set_xlabel("time of an epoch, s", color=LIGHT.ink, fontsize=9.5)
    times.set_ylabel("part of the experiments", color=LIGHT.ink, fontsize=9.5)
    edges = np.arange(0.6, max(speedups(epochs, OURS)) + 0.2, 0.2)
    gains.hist(
        [speedups(epochs, name) for name in (PAPER, OURS)],
        bins=list(edges),
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
    gains.set_xlabel("how many times shorter than under fairness", color=LIGHT.ink, fontsize=9.5)
    gains.set_ylabel("experiments", color=LIGHT.ink, fontsize=9.5)
    legend(figure, times)
    return figure


def main(full: Full = False, out: Out = RESULTS, json_to: Json = None) -> None:
    """Compare epochs under Deep-Edge, ours, and fairness: Figures 10 and 11 of Deep-Edge."""
    seeds = SEEDS if full else SEEDS[:QUICK]
    with channel(json_to, out) as told:
        told.console.print("fitting the models", highlight=False)
        chosen = policies(learned(held_back=False), learned(held_back=True))
        epochs: dict[str, list[Epoch]] = {policy.name: [] for policy in chosen}
        with told.steps("experiments", len(seeds)) as step:
            for seed in seeds:
                experiment = edge_experiment(seed)
                for policy in chosen:
                    epochs[policy.name].append(played(experiment, policy))
                step()
        told.publish(found(seeds, epochs))


if __name__ == "__main__":
    run(
        main,
        "python experiments/deep_edge_epochs.py --full",
        "python experiments/deep_edge_epochs.py --json -",
    )
