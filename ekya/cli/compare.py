"""``ekya compare``: runs the same frames under several schedulers, on virtual time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from ekya.cli import options as opt
from ekya.cli.command import Output, command, remember_ctrl_c
from ekya.cli.options import Clock, parse_integers, refuse_repeats


@dataclass(frozen=True, kw_only=True)
class CompareConfig(opt.FleetOptions, opt.PlayOptions):
    """Options of ``ekya compare``."""

    video: opt.Videos = None
    schedulers: Annotated[str, typer.Option(metavar="NAME,...", help=opt.COMPARED)] = (
        "ekya,thief,uniform,no-retrain"
    )
    seeds: Annotated[
        str, typer.Option(metavar="N,...", help="Seeds: one run of each scheduler for each seed.")
    ] = "0"
    windows: opt.Windows = None
    card: opt.Card = None
    json_to: opt.Json = None


@command(
    CompareConfig,
    "ekya compare",
    "ekya compare --video north.mp4 --golden yolo11x.onnx --student FastestDet.onnx",
    "ekya compare --schedulers ekya,paper,uniform@paper,no-retrain",
    "ekya compare my-fleet.yaml --schedulers ekya,uniform --seeds 0,1,2,3,4 --json result.json",
)
def compare(config: CompareConfig, output: Output) -> None:
    """Run the same frames under several schedulers, on virtual time, and print one table."""
    from ekya.cli.fleet_from_options import fit_to_card, make_run_options, read_fleet, require_world
    from ekya.results.report.tables import compare_table
    from ekya.simulation.emulated.compare import compare

    schedulers, seeds = tuple(config.schedulers.split(",")), parse_integers(config.seeds)
    refuse_repeats("--schedulers", schedulers)
    refuse_repeats("--seeds", seeds)
    fleet = read_fleet(config)
    for name in schedulers:
        require_world(fleet, name, Clock.VIRTUAL)
    fleet = fit_to_card(fleet, config.card, config.overload, output)
    with remember_ctrl_c():
        result = compare(fleet, schedulers, seeds, make_run_options(config, fleet))
        output.write_json(result)
        table = compare_table(
            [_mean_of([run for run in result["runs"] if run["scheduler"] == name]) for name in schedulers]
        )
        table.caption = f"Means over {len(seeds)} seed{'' if len(seeds) == 1 else 's'}, on the same frames"
        output.console.print(table)


def _mean_of(runs: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Returns the summary of several runs of one scheduler: means of accuracies, sums of counts."""
    from ekya.results.metrics.accuracy import mean_or_none

    return {
        "task": runs[0]["task"],
        "scheduler": runs[0]["scheduler"],
        "mean_accuracy": mean_or_none([run["mean_accuracy"] for run in runs]),
        "balanced_accuracy": mean_or_none([run["balanced_accuracy"] for run in runs]),
        "ap50": mean_or_none([run["ap50"] for run in runs]),
        "streams": {
            stream: {"mean_accuracy": mean_or_none([run["streams"][stream]["mean_accuracy"] for run in runs])}
            for stream in runs[0]["streams"]
        },
        "retrainings": {key: sum(run["retrainings"][key] for run in runs) for key in ("started", "finished")},
        "frames": {"lost": sum(run["frames"]["lost"] for run in runs)},
    }
