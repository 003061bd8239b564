"""Costs, makespan and time of a call by number of nodes, in both scenarios (ANDREAS, Figures 2 and 3).

    python experiments/andreas_figures.py
    python experiments/andreas_figures.py --nodes 10,50,100 --seeds 1
    python experiments/andreas_figures.py --full --json -

Half the nodes have two V100 or one TURING (the paper's Figure 3), or four and two (Figure 2); ten jobs
arrive for each node. The paper does not give the arrival rate: here the two-GPU clusters are full on average
and demand is twice their capacity in a burst; the four-GPU clusters are shown with the same jobs, and with
jobs that arrive twice as fast, so that they are as full. As in the paper's simulator, moving a job is free;
for moves that cost, see ``andreas_load.py``. Without --full: up to 30 nodes and one seed. With it: 10 to 100
nodes and five seeds, one to two hours. In between: ``--nodes 10,20,30,50 --seeds 5``, a tenth of that.
"""

from collections.abc import Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Annotated

import typer
from andreas_played import (
    ANDREAS,
    COLOURS,
    FIRST_PRINCIPLES,
    FREE,
    WORTH,
    Played,
    below,
    below_first_principles,
    most_below_first_principles,
    play,
    policies,
)
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from recipe import RESULTS, Beside, Finding, Full, Json, Out, channel, legend, new_figure, percent, run

from ekya.core.errors import UserError
from ekya.fleet.papers.andreas.workload import FOUR_GPUS, SEEDS, SIZES, TWO_GPUS, Scenario
from ekya.results.report.themes import LIGHT

SHOWN: dict[str, tuple[Scenario, float]] = {
    "two GPUs, load 1": (TWO_GPUS, 1.0),
    "four GPUs, load 1": (FOUR_GPUS, 1.0),
    "four GPUs, load 2": (FOUR_GPUS, 2.0),
}
PANELS = {
    "energy": "energy, €",
    "total": "energy and tardiness, €",
    "makespan_s": "all jobs done after, h",
    "call_s": "a call, s",
}


def found(rows: Sequence[Played]) -> Finding:
    """Returns the table, the figure and the paper's numbers beside ours."""
    data = {
        name: [row for row in rows if (row.scenario, row.load) == (one.name, load)]
        for name, (one, load) in SHOWN.items()
    }
    figure, axes = new_figure(len(PANELS), len(SHOWN), panel_height=2.2)
    for line, (name, own) in zip(axes, data.items(), strict=True):
        for panel, (key, label) in zip(line, PANELS.items(), strict=True):
            for policy in COLOURS:
                sizes = sorted({row.nodes for row in own})
                scale = 3600 if key == "makespan_s" else 1
                means = [
                    fmean(getattr(row, key) for row in own if (row.policy, row.nodes) == (policy, size))
                    / scale
                    for size in sizes
                ]
                panel.plot(
                    sizes, means, "o-", color=COLOURS[policy], label=policy, markersize=3, linewidth=1.3
                )
            panel.set_title(f"{name}: {label}", fontsize=8, color=LIGHT.ink, loc="left")
            panel.set_xlabel("nodes", fontsize=8, color=LIGHT.quiet)
            if key == "call_s":
                panel.set_yscale("log")
                panel.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
                panel.yaxis.set_minor_locator(NullLocator())
                panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            else:
                panel.set_ylim(bottom=0)
    figure.subplots_adjust(left=0.05, hspace=0.55, wspace=0.24)
    legend(figure, axes[0][0])
    beside = [
        Beside(
            "total cost of andreas below first-principle methods",
            "62% with two GPUs, 30% with four",
            {name: percent(below_first_principles(own, ANDREAS)) for name, own in data.items()},
        ),
        Beside(
            "the most that any policy can be below them",
            "",
            {name: percent(most_below_first_principles(own)) for name, own in data.items()},
        ),
    ]
    for policy in (ANDREAS, WORTH):
        others = FIRST_PRINCIPLES if policy == ANDREAS else (*FIRST_PRINCIPLES, ANDREAS)
        beside += [
            Beside(
                f"total cost of {policy} below {other}",
                "",
                {name: percent(below(own, policy, other)) for name, own in data.items()},
            )
            for other in others
        ]
        beside.append(
            Beside(
                f"longest call of {policy}, s",
                "< 0.1" if policy == ANDREAS else "",
                {
                    name: f"{max(row.longest_call_s for row in own if row.policy == policy):.3f}"
                    for name, own in data.items()
                },
            )
        )
    return Finding(
        "andreas_figures",
        "ANDREAS, Figures 2 and 3: costs and times over the number of nodes",
        [asdict(row) for row in rows],
        beside,
        "The paper does not say how fast its jobs come, and what ANDREAS saves depends on it: "
        "first-principle methods lose by tardiness alone, and where no job is late only energy is left to "
        "save.",
        figure,
    )


def main(
    nodes: Annotated[str, typer.Option(metavar="N,...", help="Sizes to play; 10,20,30 if left out.")] = "",
    seeds: Annotated[int, typer.Option(min=1, max=len(SEEDS), help="How many of the fixed seeds.")] = 1,
    full: Full = False,
    out: Out = RESULTS,
    json_to: Json = None,
) -> None:
    """Play all policies in both scenarios of ANDREAS, over the number of nodes."""
    try:
        sizes = tuple(int(size) for size in nodes.split(",") if size) or (SIZES if full else SIZES[:3])
    except ValueError:
        raise UserError(f"--nodes: {nodes!r} is no list of numbers; write it as 10,20,30") from None
    if min(sizes) < 1:
        raise UserError(f"--nodes: {min(sizes)} is too small; use at least 1")
    drawn = SEEDS if full else SEEDS[:seeds]
    instances = [(one, size, seed) for size in sizes for seed in drawn for one in SHOWN.values()]
    with channel(json_to, out) as told:
        rows = []
        with told.steps("simulations", len(instances) * len(COLOURS)) as step:
            for (scenario, load), size, seed in instances:
                for policy in policies(FREE):
                    rows.append(play(policy, scenario, size, seed, load))
                    step()
        told.publish(found(rows))


if __name__ == "__main__":
    run(main, "python experiments/andreas_figures.py --nodes 10,40 --seeds 3 --json figures.json")
