"""Gap of the randomised greedy to the best schedule of one scheduling point (ANDREAS, equation (1)).

    python experiments/andreas_gap.py
    python experiments/andreas_gap.py --full --json -

Jobs and nodes of both scenarios, few enough for an integer programme
(``ekya/fleet/papers/andreas/exact.py``): two or four nodes and up to eight jobs, some of whose epochs are
done, some of them urgent. The gap is the value of (1) over the best possible value, less
one; points whose best value is 0 are counted and excluded from the gap. The recipe also reports at how many
points the best schedule does what the greedy never does. Fifty points, or 300 with --full.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean, median

import numpy as np
from andreas_played import COLOURS
from recipe import RESULTS, Beside, Finding, Full, Json, Out, channel, legend, new_figure, percent, run

from ekya.fleet.papers.andreas.exact import exact
from ekya.fleet.papers.andreas.workload import SCENARIOS, Scenario, andreas_workload
from ekya.fleet.policy.andreas.construct import WAITS
from ekya.fleet.policy.andreas.greedy import Andreas
from ekya.fleet.policy.andreas.point import Point, point_of
from ekya.fleet.policy.job import Left
from ekya.fleet.policy.view import FleetView, JobState
from ekya.results.report.themes import LIGHT

ITERATIONS = (1, 10, 100, 1000)
NOTHING = 1e-9


@dataclass(frozen=True, slots=True)
class Gap:
    """One point solved exactly and by the greedy.

    Attributes:
        scenario, nodes, jobs, seed: the point.
        iterations: of the greedy.
        value, best: value of (1), of the greedy's schedule and of the best one.
        idles: whether a job waits in the best schedule while a GPU is idle.
        beyond: whether a job that could meet its due date is late in the best schedule.
    """

    scenario: str
    nodes: int
    jobs: int
    seed: int
    iterations: int
    value: float
    best: float
    idles: bool
    beyond: bool

    @property
    def gap(self) -> float:
        """Relative distance to the best value; 0 where both values are 0."""
        return self.value / self.best - 1 if self.best > NOTHING else 0.0


def points(count: int) -> Iterator[tuple[Scenario, int, int, Point]]:
    """Yields scenario, nodes, seed and point; each job is part done and between its arrival and due date."""
    for seed in range(count):
        rng = np.random.default_rng([seed, 77])
        scenario = SCENARIOS[seed % 2]
        nodes = int(rng.choice([2, 4]))
        jobs, places = andreas_workload(scenario, nodes, seed)
        some = rng.choice(len(jobs), size=int(rng.integers(3, 9)), replace=False)
        now_us = 10**12
        states = []
        for place in some:
            job = jobs[place]
            epochs = int(rng.integers(1, job.epochs + 1))
            due_s = job.waiting.due_s or 0.0
            arrives_us = now_us - round(rng.uniform(0.0, due_s) * 1e6)
            states.append(JobState(replace(job, arrives_us=arrives_us), Left(epochs, {})))
        yield scenario, nodes, seed, point_of(FleetView(now_us, tuple(states), places, seed))


def gaps(scenario: Scenario, nodes: int, seed: int, point: Point) -> Iterator[Gap]:
    """Yields the gap of one point for each number of iterations."""
    policy = Andreas()
    best = exact(point, policy.postponing, policy.period_s)
    runs = best.config != WAITS
    idle = point.all_gpus - int(point.gpus[best.config[runs]].sum())
    late = point.takes_s[runs, best.config[runs]] >= point.due_in_s[runs]
    beyond = bool((late & (point.takes_s[runs].min(axis=1) < point.due_in_s[runs])).any())
    for iterations in ITERATIONS:
        tried = replace(policy, iterations=iterations)
        _, _, value = tried.best(point, np.random.default_rng(seed))
        yield Gap(
            scenario.name,
            nodes,
            len(point.states),
            seed,
            iterations,
            value,
            best.value,
            bool(idle and not runs.all()),
            beyond,
        )


def found(rows: Sequence[Gap]) -> Finding:
    """Returns the table and the figure."""
    figure, axes = new_figure(2, 1)
    beside = []
    for panel, scenario in zip(axes[0], SCENARIOS, strict=True):
        own = [row for row in rows if row.scenario == scenario.name]
        for iterations, colour in zip(ITERATIONS, list(COLOURS.values()), strict=False):
            sorted_gaps = sorted(
                row.gap for row in own if row.iterations == iterations and row.best > NOTHING
            )
            parts = np.arange(1, len(sorted_gaps) + 1) / len(sorted_gaps)
            panel.step(sorted_gaps, parts, color=colour, label=f"{iterations} iterations", where="post")
        panel.set_xscale("symlog", linthresh=0.01)
        panel.set_title(scenario.name, fontsize=9, color=LIGHT.ink, loc="left")
        panel.set_xlabel("gap to the optimum", fontsize=8.5, color=LIGHT.quiet)
        panel.set_ylabel("part of the points", fontsize=8.5, color=LIGHT.ink)
    legend(figure, axes[0][0])
    for iterations in ITERATIONS:
        own = {
            one.name: [row for row in rows if (row.scenario, row.iterations) == (one.name, iterations)]
            for one in SCENARIOS
        }
        told = {name: [row.gap for row in some if row.best > NOTHING] for name, some in own.items()}
        for what, of in (("median", median), ("mean", fmean)):
            beside.append(
                Beside(
                    f"{what} gap after {iterations} iterations",
                    "",
                    {name: percent(of(some)) for name, some in told.items()},
                )
            )
        beside.append(
            Beside(
                f"optimal after {iterations} iterations",
                "",
                {
                    name: percent(fmean(row.value <= row.best + 1e-6 * max(1, row.best) for row in some))
                    for name, some in own.items()
                },
            )
        )
    for what, holds in (
        ("points where the best value is nothing", lambda row: row.best <= NOTHING),
        ("points where the best schedule lets a job wait beside a GPU", lambda row: row.idles),
        ("points where it lets a job be late that could be in time", lambda row: row.beyond),
    ):
        parts = {
            one.name: percent(fmean(holds(row) for row in rows if row.scenario == one.name))
            for one in SCENARIOS
        }
        beside.append(Beside(what, "", parts))
    return Finding(
        "andreas_gap",
        "ANDREAS: the randomised greedy against the exact optimum of one scheduling point",
        [{**asdict(row), "gap": row.gap} for row in rows],
        beside,
        "The paper reports no gap. By (1) a job that waits and is not pressed costs nothing, so the best "
        "schedule may keep GPUs idle; and it runs jobs late rather than let them wait, where Algorithm 1 "
        "stays within D_j.",
        figure,
    )


def main(full: Full = False, out: Out = RESULTS, json_to: Json = None) -> None:
    """Solve small scheduling points exactly, and by the randomised greedy with more and more iterations."""
    count = 300 if full else 50
    with channel(json_to, out) as told:
        rows = []
        with told.steps("points", count) as step:
            for one in points(count):
                rows += gaps(*one)
                step()
        told.publish(found(rows))


if __name__ == "__main__":
    run(main, "python experiments/andreas_gap.py --json - | jq .paper")
