"""Cost of each policy by arrival rate and by whether moving jobs costs anything (ANDREAS §V.B).

    python experiments/andreas_load.py
    python experiments/andreas_load.py --full --json -
    python experiments/andreas_load.py --loads 1.875,3.75 --full --out FOLDER

The paper's 30% and 62% depend on how full its clusters are, which it does not report. Here the same jobs
arrive at half to three times the rate of the other figures (or at the given loads), on ten nodes of both
scenarios: once as in the paper's simulator, where an interrupted job loses nothing, and once where it goes
back to its last epoch and takes a minute to start. The figure shows total costs over those of ANDREAS on the
same instance. One seed, or five with --full.
"""

from collections.abc import Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Annotated

import typer
from andreas_played import (
    ANDREAS,
    COLOURS,
    FREE,
    GREEDY,
    WORLDS,
    WORTH,
    Played,
    below,
    below_first_principles,
    play,
    policies,
)
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from recipe import RESULTS, Beside, Finding, Full, Json, Out, channel, legend, new_figure, percent, run

from ekya.core.errors import UserError
from ekya.fleet.papers.andreas.workload import SCENARIOS, SEEDS
from ekya.results.report.themes import LIGHT

LOADS = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0)
NODES = 10
PAPER = {"two-gpu": "62%", "four-gpu": "30%"}


def found(rows: Sequence[Played]) -> Finding:
    """Returns the table, the figure and the paper's numbers beside ours."""
    loads, nodes = sorted({row.load for row in rows}), rows[0].nodes
    figure, axes = new_figure(len(SCENARIOS), len(WORLDS), panel_height=2.5)
    beside = []
    for line, world in zip(axes, WORLDS, strict=True):
        for panel, scenario in zip(line, SCENARIOS, strict=True):
            own = [row for row in rows if (row.scenario, row.world) == (scenario.name, world)]
            by_load = {load: [row for row in own if row.load == load] for load in loads}
            for policy, colour in COLOURS.items():
                costs = [_ratio(some, policy) for some in by_load.values()]
                panel.plot(loads, costs, "o-", color=colour, label=policy, markersize=3, linewidth=1.3)
            panel.set_title(f"{scenario.name}, {world}", fontsize=9, color=LIGHT.ink, loc="left")
            if panel.get_ylim()[1] > 2:
                panel.set_yscale("log")
                panel.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
                panel.yaxis.set_minor_locator(NullLocator())
            panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            panel.set_xlabel("load", fontsize=8.5, color=LIGHT.quiet)
            panel.set_ylabel("total cost over andreas's", fontsize=8.5, color=LIGHT.ink)
            told = {f"load {load:g}": some for load, some in by_load.items()}
            beside += [
                Beside(
                    f"{scenario.name}, {world}: andreas below first-principle methods",
                    PAPER[scenario.name] if world == FREE else "",
                    {name: percent(below_first_principles(some, ANDREAS)) for name, some in told.items()},
                ),
                Beside(
                    f"{scenario.name}, {world}: worth below andreas",
                    "",
                    {name: percent(below(some, WORTH, ANDREAS)) for name, some in told.items()},
                ),
                *(
                    Beside(
                        f"{scenario.name}, {world}: {one} below {other}",
                        "",
                        {name: percent(below(some, one, other)) for name, some in told.items()},
                    )
                    for one, other in ((GREEDY, ANDREAS), (WORTH, "edf"))
                ),
            ]
    legend(figure, axes[0][0])
    return Finding(
        "andreas_load",
        f"ANDREAS on {nodes} nodes: what the load and the price of moving do to costs",
        [asdict(row) for row in rows],
        beside,
        "Without tardiness there is nothing to win but energy. With far more work than GPUs everyone is "
        "late, and the order by pressure serves those first that can no longer be saved.",
        figure,
    )


def _ratio(rows: Sequence[Played], policy: str) -> float:
    """Returns a policy's total cost over that of ANDREAS, a mean over instances."""
    base = {row.seed: row.total for row in rows if row.policy == ANDREAS}
    return fmean(row.total / base[row.seed] for row in rows if row.policy == policy)


def main(
    nodes: Annotated[int, typer.Option(min=1, help="In the cluster.")] = NODES,
    loads: Annotated[
        str, typer.Option(metavar="L,...", help="To play; 0.5 to 3 in halves if left out.")
    ] = "",
    seeds: Annotated[int, typer.Option(min=1, max=len(SEEDS), help="How many of the fixed seeds.")] = 1,
    full: Full = False,
    out: Out = RESULTS,
    json_to: Json = None,
) -> None:
    """Play all policies at different loads, with free and with paid moves."""
    try:
        played = tuple(float(load) for load in loads.split(",") if load) or LOADS
    except ValueError:
        raise UserError(f"--loads: {loads!r} is no list of numbers; write it as 1,1.5,2") from None
    if not all(load > 0 for load in played):
        raise UserError(f"--loads: {loads!r} has one that is not above 0; at such a load no job comes")
    instances = [
        (scenario, seed, load, world)
        for scenario in SCENARIOS
        for seed in (SEEDS if full else SEEDS[:seeds])
        for load in played
        for world in WORLDS
    ]
    with channel(json_to, out) as told:
        rows = []
        with told.steps("simulations", len(instances) * len(COLOURS)) as step:
            for scenario, seed, load, world in instances:
                for policy in policies(world):
                    rows.append(play(policy, scenario, nodes, seed, load, world))
                    step()
        told.publish(found(rows))


if __name__ == "__main__":
    run(main, "python experiments/andreas_load.py --loads 1,2 --seeds 2 --json - | jq .paper")
