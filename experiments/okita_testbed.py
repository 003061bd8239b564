"""The testbed of Okita §V.A, simulated: total cost and makespan (Okita's Figures 4 and 5).

    python experiments/okita_testbed.py
    python experiments/okita_testbed.py --full

Nine servers with one GPU each, ten jobs of Table II in the first ten of thirty slots of twenty minutes.
"""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from okita_played import BASELINES, FIT, OKITA, OURS, STYLES, below, draw_bars, mean, play_all, signed
from recipe import RESULTS, Beside, Finding, Full, Json, Out, Seed, channel, legend, new_figure, run

from ekya.fleet.papers.okita.workload import TESTBED, OkitaSetting, OkitaWorkload, of_testbed
from ekya.results.report.themes import LIGHT


def made(setting: OkitaSetting, seed: int) -> OkitaWorkload:
    """Returns one of the testbed's workloads."""
    return of_testbed(seed, setting)


def found(rows: Sequence[dict[str, Any]]) -> Finding:
    """Returns the table, the figure and the paper's numbers beside ours."""
    beside = [
        Beside(
            f"total cost, from {other}'s",
            "20-65% below",
            {name: signed(below(rows, name, other)) for name in (OKITA, FIT, OURS)},
        )
        for other in BASELINES
    ]
    spans = {name: mean(rows, "makespan_slots", policy=name) for name in STYLES}
    beside.append(
        Beside(
            "makespan, slots",
            "FIFO and DRF above OASiS and Okita",
            {name: f"{span:.1f}" for name, span in spans.items()},
        )
    )
    return Finding(
        name="okita_testbed",
        title="Okita's Figures 4 and 5: the testbed, simulated",
        rows=rows,
        beside=beside,
        why="The paper draws its costs without numbers and measured its workers' speed, which is drawn here "
        "as in the simulation. Waiting costs more than bandwidth here, and OASiS ends first. With OASiS's "
        "ties broken by the names of sites instead of Okita's Q, its cost is 5% higher.",
        figure=_drawn(rows),
    )


def _drawn(rows: Sequence[dict[str, Any]]) -> Figure:
    figure, axes = new_figure(2, 1, 2.8)
    whole = [{**row, "all": ""} for row in rows]
    for panel, key, title, form in (
        (axes[0][0], "total_cost", "Figure 4: total cost", "{:.0f}"),
        (axes[0][1], "makespan_slots", "Figure 5: makespan, slots of 20 minutes", "{:.1f}"),
    ):
        draw_bars(panel, whole, "all", key, form)
        panel.set_title(title, fontsize=10, loc="left", color=LIGHT.ink)
    legend(figure, axes[0][0])
    return figure


def main(full: Full = False, seed: Seed = 0, json_to: Json = None, out: Out = RESULTS) -> None:
    """Play the testbed's ten jobs on nine servers: Okita's Figures 4 and 5."""
    with channel(json_to, out) as tell:
        seeds = range(seed, seed + (100 if full else 20))
        with tell.steps("Testbed", len(seeds) * len(STYLES)) as step:
            rows = play_all(made, TESTBED, seeds, step)
        tell.publish(found(rows))


if __name__ == "__main__":
    run(main, "python experiments/okita_testbed.py", "python experiments/okita_testbed.py --full")
