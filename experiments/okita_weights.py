"""Sensitivity of Okita to the factors of its two metrics (Okita's Figures 11 and 12).

python experiments/okita_weights.py
python experiments/okita_weights.py --full
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from okita_played import OKITA, mean, play, sized
from recipe import RESULTS, Beside, Finding, Full, Json, Out, Seed, channel, new_figure, percent, run

from ekya.fleet.papers.okita.workload import OkitaSetting, simulation
from ekya.fleet.policy.okita.framework import Okita
from ekya.fleet.policy.okita.placing import Weights
from ekya.results.report.themes import LIGHT

ORDER = {"1:5": (1, 5), "1:2": (1, 2), "1:1": (1, 1), "2:1": (2, 1), "5:1": (5, 1)}
"""α_1 : α_2."""
PLACES = {"1:1:1": (1, 1, 1), "4:1:1": (4, 1, 1), "1:4:1": (1, 4, 1), "1:1:4": (1, 1, 4), "1:0:1": (1, 0, 1)}
"""β_1 : β_2 : β_3; without links β_2 weighs q for one megabyte."""


def weights_of(figure: str, factors: Sequence[float]) -> Weights:
    """Returns the weights of one case."""
    return Weights(*factors) if figure == "figure11" else Weights(1, 1, *factors)


def found(rows: Sequence[dict[str, Any]]) -> Finding:
    """Returns the table, the figure and the paper's numbers beside ours."""
    beside = []
    for figure, what in (("figure11", "α"), ("figure12", "β")):
        own = [row for row in rows if row["figure"] == figure]
        costs = [mean(own, "total_cost", factors=factors) for factors in {row["factors"] for row in own}]
        beside.append(
            Beside(
                f"largest total cost over the smallest, by {what}",
                "roughly equal",
                {OKITA: f"+{percent(max(costs) / min(costs) - 1)}"},
            )
        )
    return Finding(
        name="okita_weights",
        title="Okita's Figures 11 and 12: factors of its metrics",
        rows=rows,
        beside=beside,
        why="As in the paper: nothing that the factors change is large. Where β2 counts most, cost is "
        "highest: it is the mean over all links of a site, and what is paid for is one of them.",
        figure=_drawn(rows),
    )


def _drawn(rows: Sequence[dict[str, Any]]) -> Figure:
    figure, axes = new_figure(2, 1, 2.8, foot=1.2)
    labels = {"figure11": "α1 : α2", "figure12": "β1 : β2 : β3"}
    for panel, (name, label) in zip(axes[0], labels.items(), strict=True):
        own = [row for row in rows if row["figure"] == name]
        factors = list(dict.fromkeys(row["factors"] for row in own))
        heights = [mean(own, "total_cost", factors=each) for each in factors]
        bars = panel.bar(np.arange(len(factors)), heights, 0.6, color=LIGHT.streams[1])
        panel.bar_label(bars, [f"{height:.0f}" for height in heights], fontsize=7.5, padding=1)
        panel.set_xticks(np.arange(len(factors)), factors)
        panel.set_xlabel(label, fontsize=9, color=LIGHT.ink)
        panel.grid(axis="x", visible=False)
        number = name.removeprefix("figure")
        panel.set_title(f"Figure {number}: Okita's total cost", fontsize=10, loc="left", color=LIGHT.ink)
    return figure


def main(full: Full = False, seed: Seed = 0, json_to: Json = None, out: Out = RESULTS) -> None:
    """Change the factors of O and Q: Okita's Figures 11 and 12."""
    with channel(json_to, out) as tell:
        setting = OkitaSetting() if full else sized(OkitaSetting(), sites=25, jobs=50, slots=75)
        seeds = range(seed, seed + 3)
        cases = [("figure11", *case) for case in ORDER.items()]
        cases += [("figure12", *case) for case in PLACES.items()]
        rows = []
        with tell.steps("Factors", len(cases) * len(seeds)) as step:
            for figure, name, factors in cases:
                for one in seeds:
                    world = simulation(setting, one)
                    policy = Okita(setting.slot_us, weights_of(figure, factors), setting.until_us)
                    played = play(world, policy, one)
                    rows.append({"figure": figure, "factors": name, **played})
                    step()
        tell.publish(found(rows))


if __name__ == "__main__":
    run(main, "python experiments/okita_weights.py", "python experiments/okita_weights.py --full")
