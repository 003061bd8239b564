"""``ekya compare``: runs the same frames under several schedulers, on virtual time or live."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ekya.cli import options as opt
from ekya.cli.command import Output, command, remember_ctrl_c
from ekya.cli.options import Clock, parse_integers, refuse_repeats
from ekya.core.errors import UnwellRunError, UserError
from ekya.core.profile import Profiler

if TYPE_CHECKING:
    from ekya.config.fleet_file import FleetConfig


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

    On virtual time a result is the same every time. Live, sizes are measured in the first run and stay. Exit
    code 3: a scheduler that retrains has adapted nothing where it had to.
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
        UserError: the options contradict each other, or a scheduler is unknown.
        UnwellRunError: a scheduler that retrains has adapted nothing where it had to.
    """
    from ekya.cli.fleet_from_options import read_fleet, require_world
    from ekya.results.report.tables import compare_tables, difference_lines

    schedulers, seeds = tuple(config.schedulers.split(",")), parse_integers(config.seeds)
    refuse_repeats("--schedulers", schedulers)
    refuse_repeats("--seeds", seeds)
    fleet = read_fleet(config)
    for name in schedulers:
        require_world(fleet, name, Clock.WALL if config.live else Clock.VIRTUAL)
    if config.live and config.card is not None:
        raise UserError("--card: a live run plans with what it measures here; leave out --live")
    compare_all = _compare_live if config.live else _compare_on_virtual_time
    with remember_ctrl_c():
        result = compare_all(config, fleet, schedulers, seeds, output)
        output.write_json({**result, **(of_data or {})})
        means = [_mean_of([run for run in result["runs"] if run["scheduler"] == name]) for name in schedulers]
        for table in compare_tables(means):
            output.console.print(table)
        output.print_text(f"Means over {len(seeds)} seed{'' if len(seeds) == 1 else 's'}, on the same frames")
        for line in difference_lines(result["pairs"], schedulers[0]):
            output.print_text(line)
        for run in result["runs"]:
            if run["adaptation"]["sentence"] is not None:
                output.print_text(
                    f"warning of {run['scheduler']}, seed {run['seed']}: {run['adaptation']['sentence']}"
                )
        for line in last_lines:
            output.print_text(line)
    for run in result["runs"]:
        if run["adaptation"]["missed"]:
            raise UnwellRunError(f"{run['scheduler']}: {run['adaptation']['sentence']}")


def _compare_on_virtual_time(
    config: CompareConfig,
    fleet: "FleetConfig",
    schedulers: Sequence[str],
    seeds: Sequence[int],
    output: Output,
) -> dict[str, Any]:
    from ekya.cli.fleet_from_options import fit_to_card, make_run_options
    from ekya.simulation.emulated.compare import compare

    # Sizes are the same for all, so they leave time for trials if any scheduler of these makes them.
    profilers = {fleet.with_preset(name).preparation.profiler for name in schedulers}
    tried = Profiler.PAPER if Profiler.PAPER in profilers else fleet.preparation.profiler
    sized = fit_to_card(
        _with_profiler(fleet, tried),
        config.card,
        config.overload,
        output,
        gpus_asked_for=config.gpus is not None,
    )
    fleet = _with_profiler(sized, fleet.preparation.profiler)
    return compare(fleet, schedulers, seeds, make_run_options(config, fleet))


def _compare_live(
    config: CompareConfig,
    fleet: "FleetConfig",
    schedulers: Sequence[str],
    seeds: Sequence[int],
    output: Output,
) -> dict[str, Any]:
    """Runs live, all with the sizes that the first run has measured."""
    from ekya.cli.fleet_from_options import require_credentials
    from ekya.config.fleet_reading import load_fleet
    from ekya.config.run_options import RunOptions
    from ekya.config.scoring import Scoring
    from ekya.pipeline.discover_classes import with_classes
    from ekya.results.comparison import compare_schedulers
    from ekya.results.storage.run_folder import RunFolder, plain_name
    from ekya.runtime.driver.live import run_live

    require_credentials(fleet)
    fleet = with_classes(fleet)
    root, sized = config.runs / f"compare-{fleet.name}-live", fleet

    def play(scheduler: str, seed: int) -> Path:
        nonlocal sized
        options = RunOptions(
            scheduler=scheduler,
            seed=seed,
            runs=root,
            name=plain_name(f"{scheduler}-seed{seed}"),
            dashboard=False,
            overload=config.overload,
            score=Scoring.ALL,
        )
        output.print_text(f"{scheduler}, seed {seed}")
        with remember_ctrl_c():
            path = run_live(sized.with_preset(scheduler), options, output.console)
        if sized is fleet:
            measured = load_fleet(RunFolder(path).fleet)
            sized = _with_profiler(measured, fleet.preparation.profiler)
        return path

    return compare_schedulers(fleet, schedulers, seeds, play)


def _with_profiler(fleet: "FleetConfig", profiler: Profiler) -> "FleetConfig":
    preparation = fleet.preparation.model_copy(update={"profiler": profiler})
    return fleet.model_copy(update={"preparation": preparation})


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
