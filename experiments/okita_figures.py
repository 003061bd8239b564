"""Draws one of Okita's figures.

    python experiments/okita_figures.py okita_testbed
    python experiments/okita_figures.py okita_costs --full

`okita_testbed` (Figures 4 and 5) is §V.A, simulated: nine servers with one GPU each, ten jobs of Table II in
the first ten of thirty slots of twenty minutes.

`okita_ratio` (Figures 7 and 8): the optimum knows all jobs beforehand; `scipy.optimize.milp` finds it. Jobs
arrive as often as in the large workloads: two in three slots. If the solver reaches its time limit, the ratio
is to its lower bound, so ours is never flattered.

`okita_costs` (Figures 9, 10 and 14) and `okita_weights` (11 and 12) play the workloads of §V.B: 50 sites, 100
jobs in 150 slots unless the figure changes that. `okita` follows the paper's algorithm exactly,
`okita-joint` is ours. The default workload is also played on ten seeds on which nothing was tuned.

`okita_time` (Figure 13) shows processor time, so that other load on the machine does not count; wall time is
reported beside it. Everything runs on one thread. The paper ran MATLAB on a laptop's Core i5-7300HQ.
"""

import os

# Must be set before numpy is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
from matplotlib.figure import Figure
from okita_played import (
    BASELINES,
    JUDGED_SEEDS,
    OKITA,
    OURS,
    STYLES,
    below,
    below_by_seed,
    below_interval,
    draw_bars,
    draw_lines,
    mean,
    play,
    play_all,
    signed,
)
from okita_testbed import TESTBED, of_testbed
from optimum.okita import optimum
from recipe import Beside, legend, name_axes, new_figure, percent, run
from recipe_table import Asked, FigureRecipe, Row, command_of, rows_where

from ekya.fleet.papers.okita.workload import CLIFF, GROWING, LINEAR, OkitaSetting, simulation
from ekya.fleet.policy.okita.framework import Okita
from ekya.fleet.policy.okita.placing import OkitaWeights
from ekya.results.report.themes import LIGHT

DEFAULT = OkitaSetting()
TESTED = (OKITA, OURS)

Rows = Sequence[Row]

# Figures 4 and 5: the testbed.


def play_testbed(asked: Asked) -> Iterator[Row]:
    """Plays the testbed's ten jobs on nine servers."""
    seeds = range(asked.seed, asked.seed + (100 if asked.full else 20))
    return play_all(of_testbed, TESTBED, seeds)


def beside_testbed(rows: Rows) -> Iterator[Beside]:
    """Yields total costs, and makespans."""
    for other in BASELINES:
        saved = {name: signed(below(rows, name, other)) for name in TESTED}
        yield Beside(f"total cost, from {other}'s", "20-65% below", saved)
    spans = {name: f"{mean(rows, 'makespan_slots', policy=name):.1f}" for name in STYLES}
    yield Beside("makespan, slots", "FIFO and DRF above OASiS and Okita", spans)


def draw_testbed(rows: Rows) -> Figure:
    """Draws total cost and makespan."""
    figure, axes = new_figure(2, 1, 2.8)
    whole = [{**row, "all": ""} for row in rows]
    draw_bars(axes[0][0], whole, "all", "total_cost", "{:.0f}")
    draw_bars(axes[0][1], whole, "all", "makespan_slots", "{:.1f}")
    name_axes(axes[0][0], "Figure 4: total cost", size=10)
    name_axes(axes[0][1], "Figure 5: makespan, slots of 20 minutes", size=10)
    legend(figure, axes[0][0])
    return figure


# Figures 7 and 8: beside the offline optimum, on small cases.

LIMIT_S = 60.0
LAST_SLOT = 60
"""Slots available to the optimum; costs are far too high long before."""


def play_ratios(asked: Asked) -> Iterator[Row]:
    """Plays all policies on small workloads that are also solved."""
    seeds = range(asked.seed, asked.seed + (10 if asked.full else 4))
    for sites, jobs, seed in product((2, 3, 4) if asked.full else (2, 3), (2, 3, 4), seeds):
        # As many jobs a slot as the default workload.
        setting = OkitaSetting(sites=sites, jobs=jobs, slots=3 * jobs // 2)
        played = list(play_all(simulation, setting, [seed]))
        world = simulation(setting, seed)
        open_ended = replace(world, setting=replace(setting, slots=LAST_SLOT))
        best = optimum(open_ended, min(row["total_cost"] for row in played), LIMIT_S)
        for row in played:
            solved = {"optimum": best.cost, "bound": best.bound, "ratio": row["total_cost"] / best.bound}
            yield {"sites": sites, "jobs": jobs, **row, **solved}


def beside_ratios(rows: Rows) -> Iterator[Beside]:
    """Yields mean and largest ratios."""

    def means(**where: int) -> dict[str, str]:
        return {name: f"{mean(rows, 'ratio', policy=name, **where):.2f}" for name in STYLES}

    yield Beside("mean ratio", "under 1.8 (okita)", means())
    for sites in sorted({row["sites"] for row in rows}):
        yield Beside(f"mean ratio, {sites} sites", "", means(sites=sites))
    largest = {name: max(row["ratio"] for row in rows_where(rows, policy=name)) for name in STYLES}
    yield Beside("largest ratio", "", {name: f"{value:.2f}" for name, value in largest.items()})
    gap = max(1 - row["bound"] / row["optimum"] for row in rows)
    yield Beside("largest gap of the solver", "", dict.fromkeys(STYLES, f"{gap:.2%}"))


def draw_ratios(rows: Rows) -> Figure:
    """Draws ratios by jobs, and of all policies."""
    figure, axes = new_figure(2, 1, 3.0, width_ratios=(1, 1.8))
    by_jobs, bars = axes[0]
    for name, marker in ((OKITA, "o"), (OURS, "s")):
        by_sites = zip(sorted({row["sites"] for row in rows}), ("-", "--", ":", "-."), strict=False)
        for sites, dashes in by_sites:
            own = rows_where(rows, sites=sites, policy=name)
            jobs = sorted({row["jobs"] for row in own})
            heights = [mean(own, "ratio", jobs=count) for count in jobs]
            label = f"{name}, {sites} sites"
            by_jobs.plot(jobs, heights, marker + dashes, color=STYLES[name], label=label, linewidth=1.4)
    by_jobs.axhline(1.8, color=LIGHT.ink, linewidth=1, linestyle=(0, (2, 2)))
    by_jobs.axhline(1.3, color=LIGHT.quiet, linewidth=1, linestyle=(0, (1, 2)))
    by_jobs.set_ylim(1.0, 1.9)
    by_jobs.set_xticks(sorted({row["jobs"] for row in rows}))
    name_axes(by_jobs, x="jobs (dashes: the paper's 1.8; dots: what we want, 1.3)")
    name_axes(by_jobs, "Figure 7: Okita's and our ratio", size=10)
    by_jobs.legend(fontsize=7, frameon=False, ncols=2)
    cases = [{**row, "case": f"{row['sites']} sites\n{row['jobs']} jobs"} for row in rows]
    draw_bars(bars, cases, "case", "ratio", "{:.2f}", upright=True)
    bars.margins(y=0.12)
    bars.set_ylim(0.9, None)
    name_axes(bars, "Figure 8: ratio of all policies", size=10)
    legend(figure, bars)
    return figure


# Figures 9, 10 and 14: total cost by sites, jobs and latency cost functions.

JUDGED = "judged"
FUNCTION_NAMES = {GROWING: "sigmoid", LINEAR: "linear", CLIFF: "piecewise"}


def list_settings(full: bool) -> list[tuple[str, int | str, OkitaSetting]]:
    """Returns the figure, its x and the workload of each case."""
    sites = (20, 35, 50, 65, 80) if full else (20, 50)
    jobs = (50, 100, 150, 200) if full else (50, 100)
    return [
        *(("figure9", count, replace(DEFAULT, sites=count)) for count in sites),
        *(("figure10", count, replace(DEFAULT, jobs=count)) for count in jobs),
        *(("figure14", name, replace(DEFAULT, cost=cost)) for cost, name in FUNCTION_NAMES.items()),
    ]


def play_costs(asked: Asked) -> Iterator[Row]:
    """Plays Okita and its baselines on workloads of all sizes."""
    played = dict[OkitaSetting, list[Row]]()
    for figure, x, case in list_settings(asked.full):
        if case not in played:
            # The default workload supports the conclusions, so it always runs on several seeds.
            several = (5 if asked.full else 3) if asked.full or case == DEFAULT else 1
            played[case] = list(play_all(simulation, case, range(asked.seed, asked.seed + several)))
        for row in played[case]:
            yield {"figure": figure, "x": x, **row}
    for row in play_all(simulation, DEFAULT, JUDGED_SEEDS):
        yield {"figure": JUDGED, "x": "sigmoid", **row}


def beside_costs(rows: Rows) -> Iterator[Beside]:
    """Yields by how much total costs are below those of the baselines."""
    of_function = rows_where(rows, figure="figure14")
    default = rows_where(of_function, x="sigmoid")
    judged = rows_where(rows, figure=JUDGED)
    for other in BASELINES:
        saved = {name: signed(below(default, name, other)) for name in TESTED}
        yield Beside(f"total cost, from {other}'s", "20-65% below", saved, below=False)
    for other in BASELINES:
        saved = {name: signed(below_by_seed(default, name, other)) for name in TESTED}
        yield Beside(f"the same, median of seeds, from {other}'s", "", saved)
    for function in FUNCTION_NAMES.values():
        least = {
            name: signed(min(below(of_function, name, other, x=function) for other in BASELINES))
            for name in TESTED
        }
        what = f"total cost with the {function} function, from the best baseline's"
        yield Beside(what, "lower", least, below=False)
    for other in BASELINES:
        saved = {name: below_interval(judged, name, other) for name in TESTED}
        yield Beside(f"ten seeds, total cost from {other}'s", "20-65% below", saved)
    yield Beside("total cost, from okita's", "", {OURS: signed(below(default, OURS, OKITA))}, below=False)


def draw_costs(rows: Rows) -> Figure:
    """Draws total costs by sites, jobs and functions."""
    figure, axes = new_figure(3, 1, 3.0, width_ratios=(1, 1, 1.5))
    panels = zip(axes[0], ("figure9", "figure10", "figure14"), ("sites", "jobs", ""), strict=True)
    for panel, name, label in panels:
        own = [{**row, "total_cost": row["total_cost"] / 1000} for row in rows_where(rows, figure=name)]
        if label:
            draw_lines(panel, own, "x")
            name_axes(panel, x=label)
        else:
            draw_bars(panel, own, "x", "total_cost")
        costs = [row["total_cost"] for row in own]
        # Costs grow exponentially with waiting when capacity is short.
        panel.set_yscale("log" if max(costs) > 50 * min(costs) else "linear")
        if panel.get_yscale() == "linear":
            panel.set_ylim(0, None)
        name_axes(panel, f"Figure {name.removeprefix('figure')}: total cost, thousands", size=10)
    legend(figure, axes[0][0])
    return figure


# Figures 11 and 12: factors of the two metrics.

ORDER = {"1:5": (1, 5), "1:2": (1, 2), "1:1": (1, 1), "2:1": (2, 1), "5:1": (5, 1)}
"""α_1 : α_2."""
PLACES = {"1:1:1": (1, 1, 1), "4:1:1": (4, 1, 1), "1:4:1": (1, 4, 1), "1:1:4": (1, 1, 4), "1:0:1": (1, 0, 1)}
"""β_1 : β_2 : β_3; without links β_2 weighs q for one megabyte."""

FACTORS: Mapping[str, tuple[str, Mapping[str, OkitaWeights]]] = {
    "figure11": ("α1 : α2", {name: OkitaWeights(*factors) for name, factors in ORDER.items()}),
    "figure12": ("β1 : β2 : β3", {name: OkitaWeights(1, 1, *factors) for name, factors in PLACES.items()}),
}


def play_weights(asked: Asked) -> Iterator[Row]:
    """Plays Okita with other factors of O and Q."""
    setting = DEFAULT if asked.full else replace(DEFAULT, sites=25, jobs=50, slots=75)
    for figure, (_, cases) in FACTORS.items():
        for (name, weights), seed in product(cases.items(), range(asked.seed, asked.seed + 3)):
            policy = Okita(setting.slot_us, weights, setting.until_us)
            yield {"figure": figure, "factors": name, **play(simulation(setting, seed), policy, seed)}


def beside_weights(rows: Rows) -> Iterator[Beside]:
    """Yields how far costs are apart."""
    for figure, (label, cases) in FACTORS.items():
        costs = [mean(rows, "total_cost", figure=figure, factors=name) for name in cases]
        apart = f"+{percent(max(costs) / min(costs) - 1)}"
        yield Beside(f"largest total cost over the smallest, by {label[0]}", "roughly equal", {OKITA: apart})


def draw_weights(rows: Rows) -> Figure:
    """Draws total cost by factors."""
    figure, axes = new_figure(2, 1, 2.8, foot=1.2)
    for panel, (name, (label, cases)) in zip(axes[0], FACTORS.items(), strict=True):
        heights = [mean(rows, "total_cost", figure=name, factors=each) for each in cases]
        bars = panel.bar(np.arange(len(cases)), heights, 0.6, color=LIGHT.streams[1])
        panel.bar_label(bars, [f"{height:.0f}" for height in heights], fontsize=7.5, padding=1)
        panel.set_xticks(np.arange(len(cases)), list(cases))
        panel.grid(axis="x", visible=False)
        name_axes(panel, x=label)
        name_axes(panel, f"Figure {name.removeprefix('figure')}: Okita's total cost", size=10)
    return figure


# Figure 13: time of a whole run.


def time_runs(asked: Asked) -> Iterator[Row]:
    """Times whole runs."""
    for sites, jobs in product((20, 50, 80) if asked.full else (50,), (50, 75, 100)):
        setting = replace(DEFAULT, sites=sites, jobs=jobs)
        for row in play_all(simulation, setting, range(asked.seed, asked.seed + (3 if asked.full else 1))):
            yield {"sites": sites, "jobs": jobs, **row}


def beside_times(rows: Rows) -> Iterator[Beside]:
    """Yields times of the largest workload of all sizes."""
    for how, key, paper in ((" of the process", "cpu_s", ""), (" by the clock", "run_s", "under 50")):
        took = {name: f"{mean(rows, key, policy=name, sites=50, jobs=100):.1f}" for name in STYLES}
        yield Beside(f"50 sites, 100 jobs: seconds{how}", paper, took)


def draw_times(rows: Rows) -> Figure:
    """Draws processor time by jobs."""
    sites = sorted({row["sites"] for row in rows})
    figure, axes = new_figure(len(sites), 1, 2.8, sharey=True)
    for panel, count in zip(axes[0], sites, strict=True):
        draw_lines(panel, rows_where(rows, sites=count), "jobs", "cpu_s")
        panel.axhline(5, color=LIGHT.ink, linewidth=1, linestyle=(0, (2, 2)))
        name_axes(panel, x="jobs (dashes: what we want, 5 s)")
        name_axes(panel, f"{count} sites: seconds", size=10)
    legend(figure, axes[0][0])
    return figure


FIGURES = {
    "okita_testbed": FigureRecipe(
        "Testbed",
        "Okita's Figures 4 and 5: the testbed, simulated",
        play_testbed,
        beside_testbed,
        "The paper draws its costs without numbers and measured its workers' speed, which is drawn here "
        "as in the simulation. Waiting costs more than bandwidth here, and OASiS ends first. With OASiS's "
        "ties broken by the names of sites instead of Okita's Q, its cost is 5% higher.",
        draw_testbed,
        takes=("seed",),
    ),
    "okita_ratio": FigureRecipe(
        "Optima",
        "Okita's Figures 7 and 8: cost over the offline optimum's",
        play_ratios,
        beside_ratios,
        "The paper names no parameters of its small cases. Ratios grow with the number of sites, Okita's "
        "more than ours.",
        draw_ratios,
        takes=("seed",),
    ),
    "okita_costs": FigureRecipe(
        "Total cost",
        "Okita's Figures 9, 10 and 14: total cost by sites, jobs and latency cost functions",
        play_costs,
        beside_costs,
        "Bandwidth is most of the cost. OASiS does not see it, but never waits for workers it has not "
        "planned for; here Okita's Q breaks its ties, without which it costs 5 to 10% more. Okita waits "
        "where its number of workers has no room, and ours goes on with fewer. The sigmoid function grows "
        "exponentially with a wait: a seed with a few long ones decides the mean.",
        draw_costs,
        takes=("seed",),
    ),
    "okita_weights": FigureRecipe(
        "Factors",
        "Okita's Figures 11 and 12: factors of its metrics",
        play_weights,
        beside_weights,
        "As in the paper: nothing that the factors change is large. Where β2 counts most, cost is "
        "highest: it is the mean over all links of a site, and what is paid for is one of them.",
        draw_weights,
        takes=("seed",),
    ),
    "okita_time": FigureRecipe(
        "Time",
        "Okita's Figure 13: time of a whole run",
        time_runs,
        beside_times,
        "All sites of the parameter server and all numbers of workers are one array each; a number's "
        "transfers are only worked out where a lower bound leaves it a chance. The engine's checks are "
        "included.",
        draw_times,
        takes=("seed",),
    ),
}

main = command_of(FIGURES, "Draw one of Okita's figures.")

if __name__ == "__main__":
    run(main, "python experiments/okita_figures.py okita_costs --full --json -")
