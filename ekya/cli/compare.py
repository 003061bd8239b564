"""``ekya compare``: runs the same frames under several schedulers, on virtual time."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from ekya.cli.output import Output
from ekya.cli.run import FleetArguments, complete, noticing_ctrl_c, require_world
from ekya.config.fleet_file import RunOptions
from ekya.core.errors import UserError
from ekya.results.report.tables import compare_table
from ekya.simulation.emulated.compare import compare


def compare_schedulers(
    arguments: FleetArguments,
    schedulers: tuple[str, ...],
    seeds: tuple[int, ...],
    options: RunOptions,
    output: Output,
) -> None:
    """Runs every scheduler with every seed, then prints one table of means over the seeds.

    Raises:
        UserError: a scheduler is unknown, a scheduler or seed is given twice, or the fleet file is invalid.
    """
    for option, values in (("--schedulers", schedulers), ("--seeds", seeds)):
        if len(set(values)) != len(values):
            raise UserError(f"{option}: the same one stands there twice; keep one of them")
    fleet = arguments.read()
    for name in schedulers:
        require_world(name, fleet, "virtual")
    fleet = complete(fleet, options, "virtual", output.console, gpus_asked_for=False)
    with noticing_ctrl_c() as came:
        result = compare(fleet, schedulers, seeds, options)
        output.report(result)
        runs = result["runs"]
        table = compare_table(
            [mean_summary([run for run in runs if run["scheduler"] == name]) for name in schedulers]
        )
        table.caption = f"Means over {len(seeds)} seed{'' if len(seeds) == 1 else 's'}, on the same frames"
        output.console.print(table)
    if came():
        raise KeyboardInterrupt


def mean_summary(runs: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Returns the summary of several runs of one scheduler: means of accuracies, sums of counts."""
    streams = runs[0]["streams"]
    return {
        "scheduler": runs[0]["scheduler"],
        "mean_accuracy": _mean([run["mean_accuracy"] for run in runs]),
        "balanced_accuracy": _mean([run["balanced_accuracy"] for run in runs]),
        "streams": {
            stream: {"mean_accuracy": _mean([run["streams"][stream]["mean_accuracy"] for run in runs])}
            for stream in streams
        },
        "retrainings": {key: sum(run["retrainings"][key] for run in runs) for key in ("started", "finished")},
        "frames": {"lost": sum(run["frames"]["lost"] for run in runs)},
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
