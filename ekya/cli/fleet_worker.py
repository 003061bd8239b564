"""``ekya fleet worker``: reports a machine to Deep-Edge's manager."""

from dataclasses import dataclass
from typing import Annotated

import typer

from ekya.cli import options as opt
from ekya.cli.command import command
from ekya.cli.output import Output


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """Options of ``ekya fleet worker``."""

    node: Annotated[str, typer.Option(metavar="NAME", help="Ray node of this machine.")]
    kind: opt.MachineKind
    manager: Annotated[str, typer.Option(metavar="URL", help="Address of the manager.")] = (
        "http://127.0.0.1:8471"
    )
    trains: Annotated[bool, typer.Option(help="Whether it can train.")] = True
    serves: Annotated[bool, typer.Option(help="Whether it can be the parameter server.")] = False
    app: Annotated[str, typer.Option(metavar="NAME:SECONDS", help="Application on it, and its deadline.")] = (
        ""
    )
    every: Annotated[float, typer.Option(min=1.0, metavar="SECONDS", help="Interval between reports.")] = 5.0


@command(
    WorkerConfig,
    "ekya fleet worker --manager http://10.0.0.1:8471 --node nano-1 --kind nano --app inference:0.2",
    "ekya fleet worker --manager http://10.0.0.1:8471 --node pi --kind pi4 --no-trains --serves",
)
def worker(config: WorkerConfig, _output: Output) -> None:
    """Report this machine and its state to Deep-Edge's manager, until Ctrl-C."""
    from ekya.fleet.run.deep_edge.agent import tell_on

    node = {
        "node": config.node,
        "kind": config.kind,
        "trains": f"{config.trains:d}",
        "serves": f"{config.serves:d}",
        **({"app": config.app} if config.app else {}),
    }
    tell_on(config.manager, node, config.every)
