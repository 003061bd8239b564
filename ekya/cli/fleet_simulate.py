"""``ekya fleet simulate``: fleet policies on a paper's workload, on virtual time and without training."""

import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.table import Table
from rich.text import Text

from ekya.cli.output import Output, bars_of
from ekya.core.errors import UserError
from ekya.core.units import US_PER_S
from ekya.fleet.policy.names import NodeName
from ekya.fleet.run.profiles import load_profiles
from ekya.fleet.sim.engine import FleetEngine, Outage
from ekya.fleet.sim.outcome import FleetOutcome
from ekya.fleet.worlds import Asked, World, WorldKind, world_kind


def read_outages(words: Sequence[str]) -> tuple[Outage, ...]:
    """Parses ``--fail``: a node, and the start and end of its outage in seconds.

    Raises:
        UserError: a value has another form.
    """
    outages = []
    for word in words:
        node, at, times = word.rpartition("@")
        try:
            begin_s, *end_s = (float(part) for part in times.split(":"))
            (until_s,) = end_s or (None,)
        except ValueError:
            begin_s = until_s = -1.0
        if not at or not node or begin_s < 0 or (until_s is not None and until_s <= begin_s):
            raise UserError(f"--fail {word}: write NODE@SECONDS, or NODE@FROM:TO")
        to_us = None if until_s is None else round(until_s * US_PER_S)
        outages.append(Outage(NodeName(node), round(begin_s * US_PER_S), to_us))
    return tuple(outages)


def simulate_fleet(
    world: str,
    policies: Sequence[str],
    nodes: int | None,
    jobs: int | None,
    seeds: Sequence[int],
    outages: Sequence[Outage],
    restart_s: float | None,
    profiles: Path | None,
    output: Output,
) -> None:
    """Simulates a workload under every policy and seed, then prints one table of means.

    Raises:
        UserError: a world, policy, node or profile does not exist, or a policy or seed is given twice.
        KeyboardInterrupt: after Ctrl-C; finished runs are reported.
    """
    kind = world_kind(world)
    chosen = _checked(kind, world, policies)
    restart_us = None if restart_s is None else round(restart_s * US_PER_S)
    if len(set(seeds)) != len(seeds):
        raise UserError("--seeds: the same one stands there twice; keep one of them")
    count = kind.nodes if nodes is None else nodes
    runs: list[dict[str, Any]] = []
    stopped = False
    with bars_of(output.console) as bars:
        ready = bars.add_task("Ready %", total=100)
        draw = kind.open(
            Asked(nodes, jobs, chosen, restart_us, {} if profiles is None else load_profiles(profiles)),
            lambda part: bars.update(ready, completed=round(100 * part)),
        )
        bars.remove_task(ready)
        task = bars.add_task("Runs", total=len(seeds) * len(chosen))
        try:
            for seed, name in product(seeds, chosen):
                drawn = draw(seed)
                runs.append(_facts(_played(drawn, name, outages, seed), drawn, name, seed))
                bars.advance(task)
        except KeyboardInterrupt:
            stopped = True
    means = [_mean(name, [run for run in runs if run["policy"] == name]) for name in chosen]
    output.report({"world": world, "nodes": count, "runs": runs, "mean": [mean for mean in means if mean]})
    if runs:
        output.console.print(_table(world, kind.shown, count, [mean for mean in means if mean]))
    if stopped:
        output.console.print(
            f"Stopped after {len(runs)} of {len(seeds) * len(chosen)} runs.", highlight=False
        )
        raise KeyboardInterrupt


def _checked(kind: WorldKind, world: str, policies: Sequence[str]) -> tuple[str, ...]:
    for name in policies:
        if name not in kind.policies:
            known = ", ".join(kind.policies)
            raise UserError(f"--policy {name}: no policy of {world} has this name; choose from {known}")
    if len(set(policies)) != len(policies):
        raise UserError("--policy: the same one stands there twice; keep one of them")
    return tuple(policies) or kind.policies


def _played(world: World, policy: str, outages: Sequence[Outage], seed: int) -> FleetOutcome:
    for outage in outages:
        if outage.node not in world.places.nodes:
            names = sorted(world.places.nodes)
            there = ", ".join(names) if len(names) <= _FEW else f"{names[0]} to {names[-1]}"
            raise UserError(f"--fail {outage.node}: there is no such node; they are {there}")
    return FleetEngine(
        world.policies[policy](),
        world.physics,
        world.jobs,
        world.places,
        outages,
        seed,
        timer=time.perf_counter,
    ).run()


_FEW = 8
"""Up to this number of nodes an error message lists them all."""


def _facts(outcome: FleetOutcome, world: World, policy: str, seed: int) -> dict[str, Any]:
    records = outcome.jobs.values()
    return {
        "policy": policy,
        "seed": seed,
        "currency": world.currency,
        "total_cost": round(outcome.total_cost, 6),
        "waiting_cost": round(outcome.waiting_cost, 6),
        "link_cost": round(outcome.link_cost, 6),
        "energy_cost": round(outcome.energy_cost, 6),
        "energy_kwh": round(sum(outcome.energy_j.values()) / 3.6e6, 6),
        "makespan_s": round(outcome.makespan_s, 3),
        "tardiness_s": round(sum(record.tardiness_s(outcome.ended_us) for record in records), 3),
        "epoch_s": None if outcome.epoch_s is None else round(outcome.epoch_s, 3),
        "late_jobs": outcome.missed,
        "late_apps": outcome.late_apps,
        "unfinished_jobs": len(outcome.unfinished),
        "moved_mb": round(sum(record.moved_mb for record in records), 3),
        "migrations": sum(record.migrations for record in records),
        "preemptions": sum(record.preemptions for record in records),
        "lost_s": round(sum(record.lost_us for record in records) / US_PER_S, 3),
        "decisions": len(outcome.decide_s),
        "host": {
            "decide_s_mean": round(fmean(outcome.decide_s), 6),
            "decide_s_most": round(max(outcome.decide_s), 6),
        },
    }


_SHOWN = {
    "total_cost": "Total",
    "waiting_cost": "Waiting",
    "link_cost": "Links",
    "energy_cost": "Energy",
    "makespan_s": "Lasts s",
    "epoch_s": "Epoch s",
    "late_jobs": "Late",
    "late_apps": "Apps late",
    "unfinished_jobs": "Open",
    "migrations": "Moves",
    "lost_s": "Lost s",
}
"""Facts of which a mean is shown, with the title of their column."""


def _mean(policy: str, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns means over the runs of a policy; empty if there are none."""
    if not runs:
        return {}
    means = {key: _mean_of([run[key] for run in runs if run[key] is not None]) for key in _SHOWN}
    return {"policy": policy, "seeds": len(runs), "currency": runs[0]["currency"], **means}


def _mean_of(values: Sequence[float]) -> float | None:
    return round(fmean(values), 6) if values else None


def _table(world: str, shown: Sequence[str], nodes: int, means: Sequence[dict[str, Any]]) -> Table:
    """Builds a table with a row per policy; the cheapest is bold."""
    currency = means[0]["currency"]
    table = Table(title=Text(f"{world}, {nodes} nodes; costs in {currency}"), title_justify="left")
    table.add_column("Policy", min_width=max(len(mean["policy"]) for mean in means))
    for key in shown:
        table.add_column(_SHOWN[key], justify="right")
    cheapest = min(mean["total_cost"] for mean in means)
    for mean in means:
        style = "bold" if mean["total_cost"] == cheapest else ""
        table.add_row(mean["policy"], *(_short(mean[key]) for key in shown), style=style)
    return table


def _short(value: float | None) -> str:
    """Formats four significant digits, or all digits of a large number; a dash for None."""
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 1000 or value == round(value) else f"{value:.4g}"
