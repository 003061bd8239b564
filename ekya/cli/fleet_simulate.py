"""``ekya fleet simulate``: fleet policies on a workload, on virtual time and without training."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from ekya.cli import options as opt
from ekya.cli.command import Output, command, open_bars
from ekya.cli.options import parse_integers, refuse_repeats, split_names
from ekya.core.errors import UserError
from ekya.core.units import US_PER_S, seconds_to_us
from ekya.fleet.sim.engine import FleetEngine

if TYPE_CHECKING:
    from ekya.fleet.papers.worlds import PaperWorld
    from ekya.fleet.sim.outcome import FleetOutcome


@dataclass(frozen=True, kw_only=True)
class FleetSimulateConfig:
    """Options of ``ekya fleet simulate``."""

    world: Annotated[
        str,
        typer.Argument(
            metavar="WORLD",
            help="A paper's workload: andreas-two-gpu, andreas-four-gpu, okita or deep-edge.",
        ),
    ]
    policy: Annotated[
        str, typer.Option(metavar="NAME,...", help="Policies; default: all that can run in it.")
    ] = ""
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Number of nodes or sites; default: the world's own.")
    ] = None
    first: Annotated[
        int | None, typer.Option(min=1, metavar="JOBS", help="Only the first jobs; default: all of them.")
    ] = None
    seeds: Annotated[
        str, typer.Option(metavar="SEED,...", help="Seeds of the workload and the policies.")
    ] = "1"
    restart: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            metavar="SECONDS",
            help="With policies of ANDREAS: what an interrupted job takes to start again, from its last "
            "epoch. "
            "Moves cost nothing if left out, as in the paper's simulator.",
        ),
    ] = None
    json_to: opt.Json = None


@command(
    FleetSimulateConfig,
    "ekya fleet simulate andreas-two-gpu --nodes 20 --seeds 1,2,3",
    "ekya fleet simulate okita --policy okita,okita-joint,drf --nodes 20 --json -",
    "ekya fleet simulate andreas-two-gpu --policy andreas,worth,edf --restart 60",
    "ekya fleet simulate deep-edge --policy deep-edge,fair --seeds 2020,2021,2022",
)
def simulate(config: FleetSimulateConfig, output: Output) -> None:
    """Simulate a paper's workload under fleet policies, in virtual time."""
    from ekya.fleet.papers.worlds import WorkloadOptions, world_kind

    seeds = parse_integers(config.seeds)
    kind = world_kind(config.world)
    policies = _checked(split_names(config.policy), config.world, tuple(kind.policies))
    refuse_repeats("--seeds", seeds)
    restart_us = None if config.restart is None else seconds_to_us(config.restart)
    nodes = kind.nodes if config.nodes is None else config.nodes
    runs: list[dict[str, Any]] = []
    stopped = False
    with open_bars(output.console) as bars:
        task = bars.add_task("Runs", total=len(seeds) * len(policies))
        draw = kind.open(WorkloadOptions(config.nodes, config.first, policies, restart_us))
        try:
            for seed, name in product(seeds, policies):
                world = draw(seed)
                runs.append(_facts(_play(world, name, seed), world, name, seed))
                bars.advance(task)
        except KeyboardInterrupt:
            stopped = True
    means = [_mean(own) for name in policies if (own := [run for run in runs if run["policy"] == name])]
    output.write_json({"world": config.world, "nodes": nodes, "runs": runs, "mean": means})
    if means:
        output.console.print(_table(f"{config.world}, {nodes} nodes", kind.shown, means))
    if stopped:
        output.print_text(f"Stopped after {len(runs)} of {len(seeds) * len(policies)} runs.")
        raise KeyboardInterrupt


def _checked(policies: tuple[str, ...], world: str, known: tuple[str, ...]) -> tuple[str, ...]:
    for name in policies:
        if name not in known:
            raise UserError(
                f"--policy {name}: no policy of {world} has this name; choose from {', '.join(known)}"
            )
    refuse_repeats("--policy", policies)
    return policies or known


def _play(world: "PaperWorld", policy: str, seed: int) -> "FleetOutcome":
    return FleetEngine(
        world.policy(policy),
        world.physics,
        world.jobs,
        world.places,
        seed,
        timer=time.perf_counter,
    ).run()


def _facts(outcome: "FleetOutcome", world: "PaperWorld", policy: str, seed: int) -> dict[str, Any]:
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


def _mean(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns means over the runs of a policy."""
    first = runs[0]
    means = {key: [run[key] for run in runs if run[key] is not None] for key in _SHOWN}
    rounded = {key: round(fmean(values), 6) if values else None for key, values in means.items()}
    return {"policy": first["policy"], "seeds": len(runs), "currency": first["currency"], **rounded}


def _table(what: str, shown: Sequence[str], means: Sequence[dict[str, Any]]) -> Table:
    """Builds a table with a row per policy; the cheapest is bold."""
    table = Table(title=Text(f"{what}; costs in {means[0]['currency']}"), title_justify="left")
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
