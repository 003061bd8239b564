"""``ekya compare``: runs the same frames under several schedulers, on virtual time or live."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from ekya.cli import options as opt
from ekya.cli.command import Output, command
from ekya.cli.options import parse_integers, refuse_repeats
from ekya.core.errors import UnwellRunError
from ekya.system.ctrl_c import remember_ctrl_c


@dataclass(frozen=True, kw_only=True)
class CompareConfig(opt.FleetOptions, opt.PlayOptions):
    """Options of ``ekya compare``."""

    video: opt.Videos = None
    schedulers: Annotated[str, typer.Option(*opt.SCHEDULER_NAMES, metavar="NAME,...", help=opt.COMPARED)] = (
        "ekya,thief,uniform,no-retrain"
    )
    seeds: Annotated[
        str, typer.Option(metavar="N,...", help="Seeds: one run of each scheduler for each seed.")
    ] = "0"
    windows: opt.Windows = None
    cameras: opt.Repeated = None
    card: opt.Card = None
    live: Annotated[
        bool, typer.Option("--live", help="Run on Ray and the wall clock, one scheduler after the other.")
    ] = False
    json_to: opt.Json = None


@command(
    CompareConfig,
    "ekya compare",
    "ekya compare --video north.mp4 --golden yolo11x.onnx --student FastestDet.onnx",
    "ekya compare --schedulers ekya,paper,ekya@paper,no-retrain",
    "ekya compare my-fleet.yaml --schedulers ekya,uniform --seeds 0,1,2,3,4 --json result.json",
    "ekya compare --live --schedulers ekya,thief,uniform --seeds 0,1,2",
)
def compare(config: CompareConfig, output: Output) -> None:
    """Run the same frames under several schedulers, and print one table.

    On virtual time a result is the same every time, so finished runs of the same in the folder are not played
    again. Live, sizes are measured in the first run and stay. Exit code 3: a scheduler that retrains has
    adapted nothing where it had to.
    """
    compare_and_report(config, output)


def compare_and_report(
    config: CompareConfig,
    output: Output,
    of_data: Mapping[str, object] | None = None,
    last_lines: Sequence[str] = (),
) -> None:
    """Compares schedulers and prints tables.

    Args:
        config: of the comparison.
        output: of the command.
        of_data: added to the JSON.
        last_lines: printed at the end.

    Raises:
        UserError: see ``ekya.compare``.
        UnwellRunError: a scheduler that retrains has adapted nothing where it had to.
    """
    from ekya.api.comparison import compare
    from ekya.api.fleets import Fleet
    from ekya.cli.fleet_from_options import read_fleet

    schedulers, seeds = tuple(config.schedulers.split(",")), parse_integers(config.seeds)
    refuse_repeats("--schedulers", schedulers)
    refuse_repeats("--seeds", seeds)
    fleet = Fleet.of(read_fleet(config))
    with remember_ctrl_c():
        result = compare(
            fleet,
            schedulers,
            seeds,
            live=config.live,
            gpus=config.gpus,
            card=config.card,
            overload=config.overload,
            runs=config.runs,
            console=output.console,
        )
        output.write_json({**result.values, **(of_data or {})})
        output.print_parts([*result.printed_parts(), *last_lines])
    for run in result.values["runs"]:
        if run["adaptation"]["missed"]:
            raise UnwellRunError(f"{run['scheduler']}: {run['adaptation']['sentence']}")
