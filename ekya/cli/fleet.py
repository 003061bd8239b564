"""Commands for several servers: ``ekya fleet ...``."""

from pathlib import Path
from typing import Annotated

import typer

from ekya.cli import deep_edge
from ekya.cli.options import (
    Clock,
    Json,
    RunClock,
    RunName,
    Runs,
    Scheduler,
    Seed,
    Shares,
    Window,
    Windows,
    numbers,
)

commands = typer.Typer(help="Several servers: placement of trainings.")


@commands.callback(invoke_without_command=True)
def _group(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@commands.command(
    epilog="Examples:\n\n"
    "ekya fleet simulate andreas-two-gpu --nodes 20 --seeds 1,2,3\n\n"
    "ekya fleet simulate okita --policy okita,okita-joint,drf --nodes 20 --json -\n\n"
    "ekya fleet simulate andreas-four-gpu --policy andreas --fail node-001@20000:27200\n\n"
    "ekya fleet simulate andreas-two-gpu --policy andreas,worth,edf --restart 60\n\n"
    "ekya fleet simulate deep-edge --policy deep-edge,fair --seeds 2020,2021,2022\n\n"
    "ekya fleet simulate deep-edge --fail nano-1@300:600 --json -"
)
def simulate(
    world: Annotated[
        str, typer.Argument(metavar="WORLD", help="andreas-two-gpu, andreas-four-gpu, okita or deep-edge.")
    ],
    policy: Annotated[
        str, typer.Option(metavar="NAME,...", help="Policies; default: all of this world.")
    ] = "",
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Number of nodes or sites; default: the world's own.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Number of jobs, the first ones; default: the paper's number.")
    ] = None,
    seeds: Annotated[
        str, typer.Option(metavar="SEED,...", help="Seeds of the workload and the policies.")
    ] = "1",
    fail: Annotated[
        list[str] | None,
        typer.Option(metavar="NODE@FROM[:TO]", help="A node that fails, in seconds; give it once for each."),
    ] = None,
    restart: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            metavar="SECONDS",
            help="In ANDREAS's worlds: what an interrupted job takes to start again, from its last epoch. "
            "Moves cost nothing if left out, as in the paper's simulator.",
        ),
    ] = None,
    profiles: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="In ANDREAS's worlds: what an epoch takes, by node and GPUs (docs/fleet/andreas.md).",
        ),
    ] = None,
    json_to: Json = None,
) -> None:
    """Simulate a paper's workload under fleet policies, in virtual time."""
    from ekya.cli.output import output

    with output(json_to) as channel:
        from ekya.cli.fleet_simulate import read_outages, simulate_fleet

        names = [name for name in policy.split(",") if name]
        simulate_fleet(
            world, names, nodes, jobs, numbers(seeds), read_outages(fail or ()), restart, profiles, channel
        )


@commands.command(
    epilog="Examples:\n\n"
    "ekya fleet run\n\n"
    "ekya fleet run my-servers.yaml --address 10.0.0.1:6379\n\n"
    "ekya fleet run --clock virtual --tier none --json -\n\n"
    "ekya fleet run my-servers.yaml --clock virtual --fail north@45 --name storm"
)
def run(
    servers: Annotated[
        Path | None, typer.Argument(metavar="SERVERS", help="Servers file; the shipped one if left out.")
    ] = None,
    tier: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Tiers that find loans between servers: net (ours, if left out), andreas, andreas+split, "
            "deep-edge, okita, okita-joint, one-server, or none.",
        ),
    ] = None,
    fail: Annotated[
        list[str] | None,
        typer.Option(metavar="SITE@SECONDS", help="A server that dies then; give it once for each."),
    ] = None,
    scheduler: Scheduler = None,
    clock: RunClock = Clock.WALL,
    seed: Seed = 0,
    window: Window = None,
    windows: Windows = None,
    name: RunName = None,
    runs: Runs = Path("runs"),
    shares: Shares = "auto",
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="A Ray cluster whose nodes are the servers; they are emulated on this machine if left out.",
        ),
    ] = None,
    json_to: Json = None,
) -> None:
    """Run several servers, each with Ekya inside, that lend each other shares of their GPUs."""
    from ekya.cli.output import output

    with output(json_to) as out:
        from ekya.cli.fleet_run import ServersArguments, run_servers
        from ekya.config.fleet_file import RunOptions

        arguments = ServersArguments(servers, scheduler, window, windows, tier, tuple(fail or ()), address)
        run_servers(arguments, RunOptions(seed=seed, runs=runs, name=name, shares=shares), clock.value, out)


commands.add_typer(deep_edge.commands)
