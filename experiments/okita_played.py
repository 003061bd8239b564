"""Shared parts of the recipes of Okita's figures: policies, simulation, statistics and drawing."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from scipy.stats import t

from ekya.fleet.papers.okita.workload import OkitaPhysics, OkitaSetting, OkitaWorkload
from ekya.fleet.papers.registry import PLAYED
from ekya.fleet.papers.worlds import okita_terms
from ekya.fleet.policy.view import FleetPolicy
from ekya.fleet.sim.engine import FleetEngine
from ekya.results.report.themes import LIGHT

OKITA, OURS, OASIS, DRF, FIFO = "okita", "okita-joint", "oasis", "drf", "okita-fifo"
BASELINES = (OASIS, DRF, FIFO)
STYLES = dict(zip((OURS, OKITA, OASIS, DRF, FIFO), LIGHT.streams, strict=False))

JUDGED_SEEDS = range(100, 110)
"""Seeds on which policies are compared, committed before any policy played them; 0 to 9 are for tuning."""


def play(world: OkitaWorkload, policy: FleetPolicy, seed: int) -> dict[str, Any]:
    """Simulates one policy on one workload; the engine checks all constraints in every slot."""
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    physics = OkitaPhysics(world.setting.slot_us)
    outcome = FleetEngine(policy, physics, world.jobs, world.places, seed=seed).run()
    responses = [record.response_s(outcome.ended_us) for record in outcome.jobs.values()]
    return {
        "policy": policy.name,
        "seed": seed,
        "total_cost": outcome.total_cost,
        "latency_cost": outcome.waiting_cost,
        "bandwidth_cost": outcome.link_cost,
        "makespan_slots": outcome.makespan_s / world.setting.slot_s,
        "response_slots": float(np.mean(responses)) / world.setting.slot_s,
        "run_s": time.perf_counter() - began_s,
        "cpu_s": time.process_time() - began_cpu_s,
    }


def play_all(
    made: Callable[[OkitaSetting, int], OkitaWorkload], setting: OkitaSetting, seeds: Iterable[int]
) -> Iterator[dict[str, Any]]:
    """Simulates all policies on the workloads of these seeds."""
    for seed in seeds:
        world = made(setting, seed)
        for name in STYLES:
            yield play(world, PLAYED[name](okita_terms(world)), seed)


def mean(rows: Iterable[Mapping[str, Any]], key: str, **where: Any) -> float:
    """Returns the mean over the rows that have these values."""
    return float(
        np.mean([row[key] for row in rows if all(row[name] == value for name, value in where.items())])
    )


def below(rows: Sequence[Mapping[str, Any]], name: str, other: str, **where: Any) -> float:
    """Returns the part by which the mean total cost of one policy is below the other's."""
    cost, others = (mean(rows, "total_cost", policy=who, **where) for who in (name, other))
    return 1 - cost / others


def below_by_seed(rows: Sequence[Mapping[str, Any]], name: str, other: str) -> float:
    """Returns the median over seeds of the part by which one policy's total cost is below the other's."""
    cost = {(row["policy"], row["seed"]): row["total_cost"] for row in rows}
    seeds = {row["seed"] for row in rows}
    return float(np.median([1 - cost[name, seed] / cost[other, seed] for seed in seeds]))


def below_interval(rows: Sequence[Mapping[str, Any]], name: str, other: str) -> str:
    """Formats the mean over seeds of the part by which one policy is below another, with its 95% interval."""
    cost = {(row["policy"], row["seed"]): row["total_cost"] for row in rows}
    parts = [1 - cost[name, seed] / cost[other, seed] for seed in sorted({row["seed"] for row in rows})]
    half = float(t.ppf(0.975, len(parts) - 1)) * float(np.std(parts, ddof=1)) / len(parts) ** 0.5
    middle = float(np.mean(parts))
    return f"{middle:.0%} below ({middle - half:.0%} to {middle + half:.0%})"


def signed(part: float) -> str:
    """Formats a part as ``35% below`` or ``2% above``."""
    return f"{abs(part):.0%} {'below' if part >= 0 else 'above'}"


def draw_lines(axes: Axes, rows: Sequence[Mapping[str, Any]], x: str, key: str = "total_cost") -> None:
    """Draws a line for each policy, of means over seeds."""
    for name, colour in STYLES.items():
        places = sorted({row[x] for row in rows if row["policy"] == name})
        if places:
            heights = [mean(rows, key, policy=name, **{x: place}) for place in places]
            axes.plot(places, heights, "o-", color=colour, label=name, linewidth=1.6, markersize=4)


def draw_bars(
    axes: Axes,
    rows: Sequence[Mapping[str, Any]],
    x: str,
    key: str,
    form: str = "{:.0f}",
    upright: bool = False,
) -> None:
    """Draws a group of bars for each value of x, of means over seeds; ``upright`` rotates the numbers."""
    groups = list(dict.fromkeys(row[x] for row in rows))
    names = [name for name in STYLES if any(row["policy"] == name for row in rows)]
    width = 0.84 / len(names)
    for index, name in enumerate(names):
        heights = [mean(rows, key, policy=name, **{x: group}) for group in groups]
        bars = axes.bar(
            np.arange(len(groups)) + (index - len(names) / 2 + 0.5) * width,
            heights,
            width * 0.92,
            color=STYLES[name],
            label=name,
        )
        told = [form.format(height) for height in heights]
        axes.bar_label(bars, told, fontsize=6.5, padding=2, rotation=90 if upright else 0)
    axes.set_xticks(np.arange(len(groups)), [str(group) for group in groups])
    axes.grid(axis="x", visible=False)
