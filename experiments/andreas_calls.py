"""Time of a scheduling decision at a hundred nodes (ANDREAS, last panels of Figures 2 and 3).

    python experiments/andreas_calls.py
    python experiments/andreas_calls.py --nodes 50 --json -

Clusters are simulated with EDF, at the load of the other figures and at twice that load, and every fiftieth
scheduling point is given to every policy; so all policies are timed on the same running and waiting jobs.
Times are processor seconds, independent of other load on the host. The recorded views are frozen out of
Python's garbage collector, which would otherwise scan them within some calls.
"""

import gc
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from time import process_time
from typing import Annotated

import typer
from andreas_played import ANDREAS, COLOURS, FREE, WORLDS, WORTH, policies
from recipe import RESULTS, Beside, Finding, Json, Out, channel, legend, new_figure, run

from ekya.fleet.papers.andreas.first_principles import EDF
from ekya.fleet.papers.andreas.workload import SCENARIOS, SEEDS, Scenario, andreas_workload
from ekya.fleet.policy.assignment import Decision
from ekya.fleet.policy.view import FleetView
from ekya.fleet.sim.engine import FleetEngine
from ekya.results.report.themes import LIGHT

EVERY = 50
LOADS = (1.0, 2.0)


@dataclass(frozen=True, slots=True)
class Call:
    """Time of one decision."""

    scenario: str
    load: float
    policy: str
    jobs: int
    took_s: float


class Kept:
    """EDF policy that records every fiftieth view."""

    name, on_events, every_us = "edf", True, None

    def __init__(self) -> None:
        self.views: list[FleetView] = []
        self._asked, self._policy = 0, EDF

    def decide(self, view: FleetView) -> Decision:
        """Returns EDF's decision."""
        if self._asked % EVERY == 0:
            self.views.append(view)
        self._asked += 1
        return self._policy.decide(view)


def views(scenario: Scenario, nodes: int, load: float) -> list[FleetView]:
    """Returns scheduling points of one simulation."""
    jobs, places = andreas_workload(scenario, nodes, SEEDS[0], load)
    kept = Kept()
    FleetEngine(kept, WORLDS[FREE], jobs, places, seed=SEEDS[0]).run()
    return kept.views


def found(rows: Sequence[Call], nodes: int) -> Finding:
    """Returns the table, the figure and the paper's number beside ours."""
    figure, axes = new_figure(len(SCENARIOS), 1)
    beside = []
    for panel, scenario in zip(axes[0], SCENARIOS, strict=True):
        for policy, colour in COLOURS.items():
            own = [row for row in rows if (row.scenario, row.policy) == (scenario.name, policy)]
            panel.plot(
                [row.jobs for row in own], [row.took_s for row in own], ".", color=colour, label=policy
            )
        panel.axhline(0.1, color=LIGHT.ink, linewidth=1, linestyle=(0, (2, 2)))
        panel.set_yscale("log")
        panel.set_title(scenario.name, fontsize=9, color=LIGHT.ink, loc="left")
        panel.set_xlabel("jobs that run or wait", fontsize=8.5, color=LIGHT.quiet)
        panel.set_ylabel("a call, s", fontsize=8.5, color=LIGHT.ink)
    for policy in COLOURS:
        took = {
            f"{one.name}, load {load:g}": [
                row.took_s for row in rows if (row.scenario, row.load, row.policy) == (one.name, load, policy)
            ]
            for one in SCENARIOS
            for load in LOADS
        }
        for what, of in (("mean", fmean), ("longest", max)):
            paper = {"mean": "< 0.01 with four GPUs", "longest": "< 0.1"}[what] if policy == ANDREAS else ""
            if policy in (ANDREAS, WORTH, "edf"):
                told = {name: f"{of(some):.4f}" for name, some in took.items()}
                beside.append(Beside(f"{what} call of {policy}, s", paper, told))
    legend(figure, axes[0][0])
    return Finding(
        "andreas_calls",
        f"ANDREAS: time of a decision on {nodes} nodes",
        [asdict(row) for row in rows],
        beside,
        "All schedules of a batch are built beside each other in arrays.",
        figure,
    )


def main(
    nodes: Annotated[int, typer.Option(min=1, help="In the cluster.")] = 100,
    out: Out = RESULTS,
    json_to: Json = None,
) -> None:
    """Time decisions of all policies on scheduling points of a large cluster."""
    with channel(json_to, out) as told:
        rows = []
        with told.steps("clusters", len(SCENARIOS) * len(LOADS)) as step:
            for scenario in SCENARIOS:
                for load in LOADS:
                    seen = views(scenario, nodes, load)
                    gc.collect()
                    gc.freeze()
                    for view in seen:
                        for policy in policies(FREE):
                            began_s = process_time()
                            policy.decide(view)
                            took_s = process_time() - began_s
                            rows.append(Call(scenario.name, load, policy.name, len(view.jobs), took_s))
                    step()
        told.publish(found(rows, nodes))


if __name__ == "__main__":
    run(main, "python experiments/andreas_calls.py --nodes 100 --json - | jq .paper")
