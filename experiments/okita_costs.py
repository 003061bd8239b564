"""Okita's total cost by sites, jobs and latency cost functions (Okita's Figures 9, 10 and 14).

    python experiments/okita_costs.py
    python experiments/okita_costs.py --full

Workloads are those of §V.B: 50 sites, 100 jobs in 150 slots unless the figure changes that. `okita` follows
the paper's algorithm exactly, `okita-fit` begins with fewer workers where that waits, `okita-joint` is ours.
Costs are means over seeds. The default workload is also played on ten seeds on which nothing was tuned.
"""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from okita_played import (
    BASELINES,
    FIT,
    JUDGED_SEEDS,
    OKITA,
    OURS,
    STYLES,
    below,
    below_by_seed,
    below_interval,
    draw_bars,
    draw_lines,
    play_all,
    signed,
    sized,
    tagged,
)
from recipe import RESULTS, Beside, Finding, Full, Json, Out, Seed, channel, legend, new_figure, run

from ekya.fleet.papers.okita.workload import CLIFF, GROWING, LINEAR, OkitaSetting, simulation
from ekya.results.report.themes import LIGHT

DEFAULT = OkitaSetting()
JUDGED = "judged"
_TESTED = (OKITA, FIT, OURS)
FUNCTION_NAMES = {GROWING: "sigmoid", LINEAR: "linear", CLIFF: "piecewise"}


def settings(full: bool) -> list[tuple[str, Any, OkitaSetting]]:
    """Returns the figure, its x and the workload of each case."""
    sites = (20, 35, 50, 65, 80) if full else (20, 50)
    jobs = (50, 100, 150, 200) if full else (50, 100)
    every = [("figure9", count, sized(DEFAULT, sites=count)) for count in sites]
    every += [("figure10", count, sized(DEFAULT, jobs=count)) for count in jobs]
    return every + [("figure14", name, sized(DEFAULT, cost=cost)) for cost, name in FUNCTION_NAMES.items()]


def found(rows: Sequence[dict[str, Any]]) -> Finding:
    """Returns the table, the figure and the paper's numbers beside ours."""
    of_function = [row for row in rows if row["figure"] == "figure14"]
    default = [row for row in of_function if row["x"] == "sigmoid"]
    beside = [
        Beside(
            f"total cost, from {other}'s",
            "20-65% below",
            {name: signed(below(default, name, other)) for name in _TESTED},
            below=False,
        )
        for other in BASELINES
    ]
    beside += [
        Beside(
            f"the same, median of seeds, from {other}'s",
            "",
            {name: signed(below_by_seed(default, name, other)) for name in _TESTED},
        )
        for other in BASELINES
    ]
    beside += [
        Beside(
            f"total cost with the {function} function, from the best baseline's",
            "lower",
            {
                name: signed(min(below(of_function, name, other, x=function) for other in BASELINES))
                for name in _TESTED
            },
            below=False,
        )
        for function in FUNCTION_NAMES.values()
    ]
    judged = [row for row in rows if row["figure"] == JUDGED]
    beside += [
        Beside(
            f"ten seeds, total cost from {other}'s",
            "20-65% below",
            {name: below_interval(judged, name, other) for name in _TESTED},
        )
        for other in BASELINES
    ]
    beside.append(
        Beside("total cost, from okita's", "", {OURS: signed(below(default, OURS, OKITA))}, below=False)
    )
    return Finding(
        name="okita_costs",
        title="Okita's Figures 9, 10 and 14: total cost by sites, jobs and latency cost functions",
        rows=rows,
        beside=beside,
        why="Bandwidth is most of the cost. OASiS does not see it, but never waits for workers it has not "
        "planned for; here Okita's Q breaks its ties, without which it costs 5 to 10% more. Okita waits "
        "where its number of workers has no room, and ours goes on with fewer. The sigmoid function grows "
        "exponentially with a wait: a seed with a few long ones decides the mean.",
        figure=_drawn(rows),
    )


def _drawn(rows: Sequence[dict[str, Any]]) -> Figure:
    figure, axes = new_figure(3, 1, 3.0, width_ratios=(1, 1, 1.5))
    panels = zip(axes[0], ("figure9", "figure10", "figure14"), ("sites", "jobs", ""), strict=True)
    for panel, name, label in panels:
        own = [{**row, "total_cost": row["total_cost"] / 1000} for row in rows if row["figure"] == name]
        if label:
            draw_lines(panel, own, "x")
            panel.set_xlabel(label, fontsize=9, color=LIGHT.ink)
        else:
            draw_bars(panel, own, "x", "total_cost")
        costs = [row["total_cost"] for row in own]
        # Costs grow exponentially with waiting when capacity is short.
        panel.set_yscale("log" if max(costs) > 50 * min(costs) else "linear")
        if panel.get_yscale() == "linear":
            panel.set_ylim(0, None)
        number = name.removeprefix("figure")
        panel.set_title(f"Figure {number}: total cost, thousands", fontsize=10, loc="left", color=LIGHT.ink)
    legend(figure, axes[0][0])
    return figure


def main(full: Full = False, seed: Seed = 0, json_to: Json = None, out: Out = RESULTS) -> None:
    """Play Okita and its baselines on workloads of all sizes: Okita's Figures 9, 10 and 14."""
    with channel(json_to, out) as tell:
        cases = settings(full)
        most = 5 if full else 3
        # The default workload supports the conclusions, so it always runs on several seeds.
        seeds_of = {
            case: range(seed, seed + (most if full or case == DEFAULT else 1)) for _, _, case in cases
        }
        runs = sum(map(len, seeds_of.values())) + len(JUDGED_SEEDS)
        rows, played = [], dict[OkitaSetting, list[dict[str, Any]]]()
        with tell.steps("Total cost", runs * len(STYLES)) as step:
            for figure, x, case in cases:
                if case not in played:
                    played[case] = play_all(simulation, case, seeds_of[case], step)
                rows += tagged(played[case], figure=figure, x=x)
            rows += tagged(play_all(simulation, DEFAULT, JUDGED_SEEDS, step), figure=JUDGED, x="sigmoid")
        tell.publish(found(rows))


if __name__ == "__main__":
    run(main, "python experiments/okita_costs.py", "python experiments/okita_costs.py --full --json -")
