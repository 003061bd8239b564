"""Accuracy lost and planning time saved by a coarser quantum (Figure 10).

    python experiments/figure10.py
    python experiments/figure10.py --full

The thief steals Δ at a time, from a tenth of a GPU to a whole one, with ten streams on 8 GPUs. The paper
does not give its smallest share δ, so both ends are shown: shares in steps of Δ, and shares in steps of 0.05
for every Δ. Where a fair share is smaller than Δ, our thief steals δ instead. Planning is timed on this
machine, on one thread: the plans in which every stream may still be retrained.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from matplotlib.figure import Figure
from played import THIEF, Data, accuracy_of, conditions, generated
from recipe import (
    RESULTS,
    Beside,
    Finding,
    Full,
    Json,
    Out,
    Seed,
    accuracy_axis,
    channel,
    legend,
    new_figure,
    points,
    run,
)

from ekya.core.plan import Plan
from ekya.core.units import FULL_GPU_MILLI
from ekya.core.view import WindowView
from ekya.planning.schedulers.registry import make_scheduler
from ekya.planning.schedulers.scheduler import Needs, Scheduler
from ekya.results.report.themes import LIGHT
from ekya.simulation.trace.simulate import simulate

GPUS = 8.0
STEPS_MILLI = (100, 200, 400, 500, 1000)
FINE_MILLI = 50
COARSE, FINE = "shares in steps of Δ", "shares in steps of 0.05"
PAPER_GAIN, PAPER_S = "about +8 points", "9.5 s"


@dataclass(slots=True)
class TimedExecutor:
    """Wraps a scheduler and times its plans.

    Attributes:
        inner: wrapped scheduler.
        seconds: of each plan, with the number of streams that could begin a retraining then.
    """

    inner: Scheduler
    seconds: list[tuple[float, int]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Name of the wrapped scheduler."""
        return self.inner.name

    @property
    def needs(self) -> Needs:
        """Needs of the wrapped scheduler."""
        return self.inner.needs

    def plan(self, view: WindowView) -> Plan:
        """Returns the wrapped scheduler's plan and records its time."""
        began = time.process_time()
        plan = self.inner.plan(view)
        free = sum(bool(stream.retrain_options) for stream in view.streams)
        self.seconds.append((time.process_time() - began, free))
        return plan

    def full_plans_s(self) -> list[float]:
        """Returns the seconds of the plans in which the most streams could begin a retraining."""
        most = max(free for _, free in self.seconds)
        return [seconds for seconds, free in self.seconds if free == most]


def rows_of(data: Data, seed: int, step: Callable[[], None]) -> list[dict[str, Any]]:
    """Returns both kinds of shares for every Δ."""
    rows = []
    for kind in (COARSE, FINE):
        for delta in STEPS_MILLI:
            under = replace(
                conditions(GPUS, seed),
                steal_milli=delta,
                quantum_milli=delta if kind == COARSE else FINE_MILLI,
            )
            scheduler = TimedExecutor(make_scheduler(THIEF))
            reached = [accuracy_of(simulate(trace, scheduler, under)) for trace in data.traces]
            rows.append(
                {
                    "kind": kind,
                    "delta": delta / FULL_GPU_MILLI,
                    "accuracy": sum(reached) / len(reached),
                    "planning_s": median(scheduler.full_plans_s()),
                    "plans": len(scheduler.seconds),
                }
            )
            step()
    return rows


def found(rows: Sequence[dict[str, Any]]) -> Finding:
    """Returns the table, the figure and the paper's numbers beside ours."""
    by_kind = {kind: [row for row in rows if row["kind"] == kind] for kind in (COARSE, FINE)}
    gain = {kind: own[0]["accuracy"] - own[-1]["accuracy"] for kind, own in by_kind.items()}
    seconds = {kind: own[0]["planning_s"] for kind, own in by_kind.items()}
    return Finding(
        name="figure10",
        title="Figure 10: the thief's quantum Δ, ten generated streams on 8 GPUs",
        rows=rows,
        beside=[
            Beside(
                "accuracy at Δ = 0.1 over Δ = 1.0", PAPER_GAIN, {kind: points(gain[kind]) for kind in gain}
            ),
            Beside(
                "planning at Δ = 0.1", PAPER_S, {kind: f"{1000 * seconds[kind]:.0f} ms" for kind in seconds}
            ),
        ],
        why="The paper does not give δ, and its loss lies between our two; planning takes a thousandth of"
        " the time because a steal changes two jobs, and all steals of a job are looked at in one "
        "array.",
        figure=_drawn(by_kind),
    )


def _drawn(by_kind: dict[str, list[dict[str, Any]]]) -> Figure:
    figure, axes = new_figure(2, 1, 3.0)
    for (kind, own), color in zip(by_kind.items(), LIGHT.streams, strict=False):
        deltas = [row["delta"] for row in own]
        axes[0][0].plot(deltas, [row["accuracy"] for row in own], "o-", color=color, label=kind)
        axes[0][1].plot(deltas, [row["planning_s"] for row in own], "o-", color=color, label=kind)
    axes[0][1].plot([0.1], [9.5], "*", color=LIGHT.ink, markersize=11, label="paper, Δ = 0.1: 9.5 s")
    axes[0][1].set_yscale("log")
    axes[0][1].set_ylabel("seconds to plan", fontsize=9.5, color=LIGHT.ink)
    accuracy_axis(axes[0][0])
    for panel in axes[0]:
        panel.set_xlabel("Δ, GPUs", fontsize=9, color=LIGHT.ink)
        panel.set_xticks([milli / FULL_GPU_MILLI for milli in STEPS_MILLI])
    legend(figure, axes[0][1])
    return figure


def main(full: Full = False, seed: Seed = 0, json_to: Json = None, out: Out = RESULTS) -> None:
    """Play ten streams with several Δ: Figure 10."""
    with channel(json_to, out) as tell:
        data = generated(10, 10 if full else 5, range(seed, seed + 3) if full else [seed])
        with tell.steps("Figure 10", 2 * len(STEPS_MILLI)) as step:
            rows = rows_of(data, seed, step)
        tell.publish(found(rows))


if __name__ == "__main__":
    run(main, "python experiments/figure10.py", "python experiments/figure10.py --full --json figure10.json")
