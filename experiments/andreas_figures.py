"""Draws one of ANDREAS's figures: costs by nodes and by load, and predicted beside executed cost.

    python experiments/andreas_figures.py andreas_nodes --at 10,50,100 --seeds 1
    python experiments/andreas_figures.py andreas_load --full

`andreas_nodes`: half the nodes have two V100 or one TURING (the paper's Figure 3), or four and two (Figure
2); ten jobs arrive for each node. The paper does not give the arrival rate: here the two-GPU clusters are
full on average and demand is twice their capacity in a burst; the four-GPU clusters are shown with the same
jobs, and with jobs that arrive twice as fast, so that they are as full. As in the paper's simulator, moving a
job is free. Up to 30 nodes and one seed; --full: 10 to 100 nodes and five seeds, one to two hours.

`andreas_load`: the paper's 30% and 62% depend on how full its clusters are, which it does not report. Here
the same jobs arrive at half to three times that rate, on ten nodes: once as in the paper's simulator, where
an interrupted job loses nothing, and once where it goes back to its last epoch and takes a minute to start.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from statistics import fmean

from andreas_played import (
    ANDREAS,
    COLOURS,
    FIRST_PRINCIPLES,
    FREE,
    GREEDY,
    WORLDS,
    WORTH,
    Played,
    below,
    below_first_principles,
    most_below_first_principles,
    play,
    policies,
)
from andreas_table3 import TABLE3
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from recipe import Beside, legend, name_axes, new_figure, percent, run
from recipe_table import Asked, FigureRecipe, command_of

from ekya.fleet.papers.andreas.workload import (
    FOUR_GPUS,
    SCENARIOS,
    SEEDS,
    SIZES,
    TWO_GPUS,
    Scenario,
)

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
LOADS = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0)
LOAD_NODES = 10
PAPER = {"two-gpu": "62%", "four-gpu": "30%"}


def drawn_seeds(asked: Asked) -> Sequence[int]:
    """Returns the first of the fixed seeds, or all."""
    return SEEDS[: len(SEEDS) if asked.full else asked.seeds or 1]


def play_by_nodes(asked: Asked) -> Iterator[Played]:
    """Plays every policy in both scenarios, over the number of nodes."""
    sizes = [round(size) for size in asked.at] or (SIZES if asked.full else SIZES[:3])
    for size, seed, (scenario, load) in product(sizes, drawn_seeds(asked), SHOWN.values()):
        for policy in policies(FREE):
            yield play(policy, scenario, size, seed, load)


def by_shown(rows: Sequence[Played]) -> dict[str, list[Played]]:
    """Returns the rows of each scenario and load."""
    return {
        name: [row for row in rows if (row.scenario, row.load) == (one.name, load)]
        for name, (one, load) in SHOWN.items()
    }


def beside_by_nodes(rows: Sequence[Played]) -> Iterator[Beside]:
    """Yields what policies save, and their longest calls."""
    data = by_shown(rows)
    yield Beside(
        "total cost of andreas below first-principle methods",
        "62% with two GPUs, 30% with four",
        {name: percent(below_first_principles(own, ANDREAS)) for name, own in data.items()},
    )
    yield Beside(
        "the most that any policy can be below them",
        "",
        {name: percent(most_below_first_principles(own)) for name, own in data.items()},
    )
    for policy in (ANDREAS, WORTH):
        for other in FIRST_PRINCIPLES if policy == ANDREAS else (*FIRST_PRINCIPLES, ANDREAS):
            saved = {name: percent(below(own, policy, other)) for name, own in data.items()}
            yield Beside(f"total cost of {policy} below {other}", "", saved)
        longest = {
            name: max(row.longest_call_s for row in own if row.policy == policy) for name, own in data.items()
        }
        yield Beside(
            f"longest call of {policy}, s",
            "< 0.1" if policy == ANDREAS else "",
            {name: f"{took_s:.3f}" for name, took_s in longest.items()},
        )


def draw_by_nodes(rows: Sequence[Played]) -> Figure:
    """Draws costs, makespan and time of a call for each scenario."""
    figure, axes = new_figure(len(PANELS), len(SHOWN), panel_height=2.2)
    for line, (name, own) in zip(axes, by_shown(rows).items(), strict=True):
        sizes = sorted({row.nodes for row in own})
        for panel, (key, label) in zip(line, PANELS.items(), strict=True):
            scale = 3600 if key == "makespan_s" else 1
            for policy in COLOURS:
                means = [
                    fmean(getattr(row, key) for row in own if (row.policy, row.nodes) == (policy, size))
                    / scale
                    for size in sizes
                ]
                draw_policy(panel, policy, sizes, means)
            name_axes(panel, f"{name}: {label}", "nodes", size=8)
            if key == "call_s":
                mark_factors(panel, (1, 3))
            else:
                panel.set_ylim(bottom=0)
    figure.subplots_adjust(left=0.05, hspace=0.55, wspace=0.24)
    legend(figure, axes[0][0])
    return figure


def draw_policy(panel: Axes, policy: str, places: Sequence[float], heights: Sequence[float]) -> None:
    """Draws the line of a policy."""
    panel.plot(places, heights, "o-", color=COLOURS[policy], label=policy, markersize=3, linewidth=1.3)


def mark_factors(panel: Axes, factors: Sequence[float]) -> None:
    """Makes the axis logarithmic, with plain numbers at these factors of each power of ten."""
    panel.set_yscale("log")
    panel.yaxis.set_major_locator(LogLocator(subs=factors))
    panel.yaxis.set_minor_locator(NullLocator())
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def play_by_load(asked: Asked) -> Iterator[Played]:
    """Plays every policy at every load, with free and with paid moves."""
    for scenario, seed, load, world in product(SCENARIOS, drawn_seeds(asked), asked.at or LOADS, WORLDS):
        for policy in policies(world):
            yield play(policy, scenario, LOAD_NODES, seed, load, world)


def by_load(rows: Sequence[Played], scenario: str, world: str) -> dict[float, list[Played]]:
    """Returns the rows of each load."""
    own = [row for row in rows if (row.scenario, row.world) == (scenario, world)]
    return {load: [row for row in own if row.load == load] for load in sorted({row.load for row in own})}


def beside_by_load(rows: Sequence[Played]) -> Iterator[Beside]:
    """Yields by how much policies are below others, by load."""
    for world, scenario in product(WORLDS, SCENARIOS):
        told = {f"load {load:g}": some for load, some in by_load(rows, scenario.name, world).items()}
        yield Beside(
            f"{scenario.name}, {world}: andreas below first-principle methods",
            PAPER[scenario.name] if world == FREE else "",
            {name: percent(below_first_principles(some, ANDREAS)) for name, some in told.items()},
        )
        for one, other in ((WORTH, ANDREAS), (GREEDY, ANDREAS), (WORTH, "edf")):
            saved = {name: percent(below(some, one, other)) for name, some in told.items()}
            yield Beside(f"{scenario.name}, {world}: {one} below {other}", "", saved)


def draw_by_load(rows: Sequence[Played]) -> Figure:
    """Draws total costs over those of ANDREAS."""
    figure, axes = new_figure(len(SCENARIOS), len(WORLDS), panel_height=2.5)
    for line, world in zip(axes, WORLDS, strict=True):
        for panel, scenario in zip(line, SCENARIOS, strict=True):
            loads = by_load(rows, scenario.name, world)
            for policy in COLOURS:
                costs = [1 - below(some, policy, ANDREAS) for some in loads.values()]
                draw_policy(panel, policy, list(loads), costs)
            name_axes(panel, f"{scenario.name}, {world}", "load", "total cost over andreas's")
            if panel.get_ylim()[1] > 2:
                mark_factors(panel, (1, 1.5, 2, 3, 5, 7))
    legend(figure, axes[0][0])
    return figure


FIGURES = {
    "andreas_nodes": FigureRecipe(
        "Policies in both scenarios, by nodes",
        "ANDREAS, Figures 2 and 3: costs and times over the number of nodes",
        play_by_nodes,
        beside_by_nodes,
        "The paper does not say how fast its jobs come, and what ANDREAS saves depends on it: "
        "first-principle methods lose by tardiness alone, and where no job is late only energy is left to "
        "save.",
        draw_by_nodes,
        takes=("seeds", "at"),
    ),
    "andreas_load": FigureRecipe(
        "Policies at different loads, with free and with paid moves",
        f"ANDREAS on {LOAD_NODES} nodes: what the load and the price of moving do to costs",
        play_by_load,
        beside_by_load,
        "Without tardiness there is nothing to win but energy. With far more work than GPUs everyone is "
        "late, and the order by pressure serves those first that can no longer be saved.",
        draw_by_load,
        takes=("seeds", "at"),
    ),
    "andreas_table3": TABLE3,
}

main = command_of(FIGURES, "Draw one of ANDREAS's figures.")

if __name__ == "__main__":
    run(main, "python experiments/andreas_figures.py andreas_nodes --at 10,40 --seeds 3 --json -")
