"""Commands about more than one server."""

from typing import Annotated

import typer

from ekya.cli.options import Json, numbers

commands = typer.Typer(help="More than one server: which training runs where.")


@commands.callback(invoke_without_command=True)
def _group(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@commands.command(
    epilog="Examples:\n\n"
    "ekya fleet simulate andreas-two-gpu --nodes 20 --seeds 1,2,3\n\n"
    "ekya fleet simulate okita --policy okita,okita-joint,drf --nodes 20 --json -\n\n"
    "ekya fleet simulate andreas-four-gpu --policy andreas --fail node-003@3600:7200\n\n"
    "ekya fleet simulate deep-edge --policy deep-edge,fair --seeds 2020,2021,2022\n\n"
    "ekya fleet simulate deep-edge --fail nano-1@300:600 --json -"
)
def simulate(
    world: Annotated[
        str, typer.Argument(metavar="WORLD", help="andreas-two-gpu, andreas-four-gpu, okita or deep-edge.")
    ],
    policy: Annotated[
        str, typer.Option(metavar="NAME,...", help="Who decides; all that can if left out.")
    ] = "",
    nodes: Annotated[int | None, typer.Option(min=1, help="Nodes, or sites; the world's own number.")] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Only the first so many; the paper's number.")
    ] = None,
    seeds: Annotated[str, typer.Option(metavar="SEED,...", help="Of the workload and the policies.")] = "1",
    fail: Annotated[
        list[str] | None,
        typer.Option(metavar="NODE@FROM[:TO]", help="A node that fails, in seconds; give it once for each."),
    ] = None,
    json_to: Json = None,
) -> None:
    """Play a paper's workload under fleet policies, on virtual time."""
    from ekya.commands.output import output

    with output(json_to) as channel:
        from ekya.commands.fleet_simulate import read_outages, simulate_fleet

        names = [name for name in policy.split(",") if name]
        simulate_fleet(world, names, nodes, jobs, numbers(seeds), read_outages(fail or ()), channel)
