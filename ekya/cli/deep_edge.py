"""Commands of Deep-Edge: profile a machine, serve the manager, register a machine with it."""

from pathlib import Path
from typing import Annotated

import typer

from ekya.cli.options import Json, Shares, numbers, parts_of_one

_Kind = Annotated[
    str, typer.Option(metavar="NAME", help="Type of machine; machines of one type are identical.")
]

commands = typer.Typer()


@commands.command(
    epilog="Examples:\n\n"
    "ekya fleet profile --kind nano --points nano.parquet\n\n"
    "ekya fleet profile --kind nano --points nano.parquet --batches 8,16,32 --cpu 0,0.5 --mem 0,0.1\n\n"
    "ekya fleet profile --kind nano --points nano.parquet --hold 1,0.7,0.4 --json -"
)
def profile(
    kind: _Kind,
    points: Annotated[
        Path, typer.Option(metavar="FILE", help="Data points (Parquet); those that it has are kept.")
    ],
    model: Annotated[str, typer.Option(metavar="NAME", help="Edge model that is trained.")] = "resnet18",
    side: Annotated[int, typer.Option(min=8, max=512, help="Side of the crops, in pixels.")] = 32,
    blocks: Annotated[int, typer.Option(min=0, help="Blocks to train, from the model's end.")] = 1,
    batches: Annotated[str, typer.Option(metavar="SAMPLES,...", help="Batch sizes.")] = "4,8,16,32",
    cpu: Annotated[
        str, typer.Option(metavar="PART,...", help="Stress of the processor, parts of one below 1.")
    ] = "0,0.25,0.5,0.75",
    mem: Annotated[
        str, typer.Option(metavar="PART,...", help="Stress of the memory, parts of one below 1.")
    ] = "0,0.1,0.2",
    hold: Annotated[
        str, typer.Option(metavar="PART,...", help="Shares to which the training is held.")
    ] = "1",
    seconds: Annotated[float, typer.Option(min=0.5, help="Duration of each measurement.")] = 3.0,
    shares: Shares = "auto",
    json_to: Json = None,
) -> None:
    """Measure this machine for Deep-Edge: a training beside inference, under stress of stress-ng.

    Each combination of --batches, --cpu, --mem and --hold is a data point. After Ctrl-C, the same command
    goes on with what is missing.
    """
    from ekya.cli.output import output

    with output(json_to) as channel:
        from ekya.cli.fleet_profile import profile_machine, read_run
        from ekya.fleet.policy.deep_edge.profile import EdgeWork

        run = read_run(
            EdgeWork(kind, model, side, blocks),
            numbers(batches, "--batches"),
            parts_of_one(cpu, "--cpu"),
            parts_of_one(mem, "--mem"),
            parts_of_one(hold, "--hold"),
            seconds,
        )
        profile_machine(run, points, shares, channel)


@commands.command(
    epilog="Examples:\n\n"
    "ekya fleet manager stores.yaml --points nano.parquet\n\n"
    "ekya fleet manager stores.yaml --points nano.parquet --address auto --host 0.0.0.0 --port 8471\n\n"
    "ekya fleet manager stores.yaml --points nano.parquet --emulate east=0.6,west=0.3\n\n"
    "curl -X POST 'http://127.0.0.1:8471/launcher?store=cam-1'"
)
def manager(
    stores: Annotated[Path, typer.Argument(metavar="STORES", help="Stores of samples and weights (YAML).")],
    points: Annotated[Path, typer.Option(metavar="FILE", help="Data points of ekya fleet profile.")],
    solver: Annotated[
        str, typer.Option(metavar="NAME", help="deep-edge, deep-edge-joint, fair or fair-kept.")
    ] = "deep-edge",
    host: Annotated[
        str, typer.Option(help="Address to listen at. Every client that reaches it can start trainings.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen at.")] = 8471,
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT|auto", help="Ray cluster to train on; default: a new local one."),
    ] = None,
    emulate: Annotated[
        str, typer.Option(metavar="NAME=PART,...", help="Ray nodes on this machine, each a part of a core.")
    ] = "",
    kind: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Type of this machine; POST /profiler then measures it."),
    ] = None,
    silent: Annotated[
        float,
        typer.Option(min=1.0, metavar="SECONDS", help="Timeout after which a silent machine counts as dead."),
    ] = 30.0,
    shares: Shares = "auto",
) -> None:
    """Serve Deep-Edge's manager over REST: it spreads updates of models over the machines of a Ray cluster.

    Machines make themselves known by ekya fleet worker, or by curl (docs/fleet/deep-edge.md). Updates are
    asked for over REST; a store with trigger: {new_samples: 200} also gets one after that many new pictures.
    """
    from ekya.cli.output import output

    with output(None) as channel:
        from ekya.cli.fleet_manager import ManagerOptions, read_emulated, run_manager

        options = ManagerOptions(
            stores, points, solver, host, port, address, read_emulated(emulate), kind, shares, silent
        )
        run_manager(options, channel.console)


@commands.command(
    epilog="Examples:\n\n"
    "ekya fleet worker --manager http://10.0.0.1:8471 --node nano-1 --kind nano --app inference:0.2\n\n"
    "ekya fleet worker --manager http://10.0.0.1:8471 --node pi --kind pi4 --no-trains --serves"
)
def worker(
    node: Annotated[str, typer.Option(metavar="NAME", help="Ray node of this machine.")],
    kind: _Kind,
    manager: Annotated[
        str, typer.Option(metavar="URL", help="Address of the manager.")
    ] = "http://127.0.0.1:8471",
    trains: Annotated[bool, typer.Option(help="Whether it can train.")] = True,
    serves: Annotated[bool, typer.Option(help="Whether it can be the parameter server.")] = False,
    app: Annotated[
        str, typer.Option(metavar="NAME:SECONDS", help="Application on it, and its deadline.")
    ] = "",
    every: Annotated[float, typer.Option(min=1.0, metavar="SECONDS", help="Interval between reports.")] = 5.0,
) -> None:
    """Report this machine and its state to Deep-Edge's manager, until Ctrl-C."""
    from ekya.fleet.run.deep_edge.agent import tell_on

    roles = {"trains": f"{trains:d}", "serves": f"{serves:d}"}
    told = {"node": node, "kind": kind, **roles, **({"app": app} if app else {})}
    tell_on(manager, told, every)
