"""Fidelity of the trace world: simulated accuracy beside that of runs that really trained.

    python experiments/fidelity.py                               # the default fleet; records a trace first
    python experiments/fidelity.py --trace city.parquet --emulated compare.json
    python experiments/fidelity.py --trace city.parquet --live runs/synthetic-city
    python experiments/fidelity.py --video hall.mp4 --video street.mp4 --golden FastestDet.onnx --window 12

Every scheduler runs in the emulated world, a trace of the fleet is recorded (or given), the schedulers decide
over it with the same seed, and accuracy is compared stream by stream and window by window, on the same
objects: an object that any run or the trace took a label from is excluded from all. (A given trace was
recorded independently of the runs and counts objects that they labelled.) `same decisions` replays the run's
decisions over the trace, which leaves only the error of the trace itself. Windows after a stream has ended,
and those without a scored object in the run, are excluded. Between simulator and testbed of the public
implementation, the median difference was 0.024 to 0.036 in accuracy and 9 to 29% in time. `--full` compares
`uniform` too, and trains from every model that may serve.
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Annotated, Any

import numpy as np
import typer
from over_trace import accuracies_of, durations_of
from recipe import (
    RESULTS,
    accuracy_axis,
    as_csv,
    legend,
    name_axes,
    new_figure,
    print_rows,
    run,
)
from rich.console import Console
from rich.logging import RichHandler

from ekya.cli.command import open_output
from ekya.cli.compare import CompareConfig
from ekya.cli.fleet_from_options import read_fleet
from ekya.config.fleet_file import FleetConfig
from ekya.config.fleet_reading import load_fleet
from ekya.config.run_options import RunOptions
from ekya.control.options import CHECKPOINT_DELAY_US
from ekya.core.commands import StepRecord
from ekya.core.errors import UserError
from ekya.core.records import LabelledBoxes
from ekya.core.trace import StreamTrace, Trace
from ekya.core.units import StreamId, us_to_seconds
from ekya.models.edge.architecture_table import Task
from ekya.pipeline.costs import load_card
from ekya.pipeline.discover_classes import with_classes
from ekya.planning.schedulers.registry import make_scheduler
from ekya.results.finalize import Scores, labelled_in_any, score_run
from ekya.results.metrics.retrainings import FINISHED, RetrainRun
from ekya.results.metrics.run_history import summarize_steps
from ekya.results.storage.journal import read_journal
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.trace_file import read_trace, write_trace
from ekya.simulation.emulated.compare import compare
from ekya.simulation.emulated.record_trace import Extent, record_fleet
from ekya.simulation.trace.simulate import Conditions, Simulated, simulate
from ekya.system.files import atomic_path, write_text_atomic

SCHEDULERS, FULL_SCHEDULERS = "ekya,thief,no-retrain", "ekya,thief,uniform,no-retrain"
TARGETS = {"emulated": 0.02, "live": 0.04}
PUBLIC_MEDIAN, PUBLIC_TIME = "0.024 to 0.036", "9 to 29%"

log = logging.getLogger("fidelity")


@dataclass(frozen=True, slots=True)
class Row:
    """One stream in one window.

    Attributes:
        real: accuracy of the run.
        simulated: accuracy of the scheduler over the trace.
        same_decisions: accuracy of the run's own decisions over the trace.
        retrained, simulated_retrained: whether a retraining was started.
    """

    scheduler: str
    stream: str
    window: int
    real: float
    simulated: float
    same_decisions: float
    retrained: bool
    simulated_retrained: bool


@dataclass(frozen=True, slots=True)
class Duration:
    """Duration of a retraining that the run finished.

    Attributes:
        real_s: in the run, in seconds.
        same_shares_s: by the trace, at the shares that it had in the run.
        simulated_s: in the simulation; None if it finished no retraining with that γ.
    """

    scheduler: str
    stream: str
    window: int
    real_s: float
    same_shares_s: float
    simulated_s: float | None


class _Log:
    """Logs the progress of trainings."""

    def expect(self, stream: StreamId, trainings: int) -> None:
        """Logs the number of a stream's trainings."""
        log.info("%s: %d trainings", stream, trainings)

    def trained(self, what: str) -> None:
        """Logs one finished training."""
        log.info("trained %s", what)


def conditions_of(fleet: FleetConfig, seed: int) -> Conditions:
    """Returns the simulation's conditions that match a run of the fleet."""
    return Conditions(
        gpus=fleet.gpus,
        windows=fleet.windows,
        quantum_milli=fleet.quantum_milli,
        steal_milli=fleet.steal_milli,
        min_accuracy=fleet.min_accuracy,
        preparation_fraction=fleet.preparation.fraction,
        preparation_share_milli=fleet.preparation.share_milli,
        checkpoint_delay_us=CHECKPOINT_DELAY_US,
        planning_us=load_card().planning_us,
        seed=seed,
    )


def compared(trace: Trace, played: Simulated, scores: Scores, turns: Sequence[StepRecord]) -> Iterator[Row]:
    """Yields every stream and window that the trace and the run have in common."""
    same = accuracies_of(trace, turns)
    began = {(run.stream, run.window) for run in summarize_steps(turns).retrainings}
    began_simulated = {(run.stream, run.window) for run in summarize_steps(played.steps).retrainings}
    for stream, accuracies in played.accuracy.items():
        for window in scores[stream].windows:
            at = (stream, window.index)
            if window.accuracy is None or window.index >= len(accuracies):
                continue
            yield Row(
                scheduler=played.scheduler,
                stream=stream,
                window=window.index,
                real=window.accuracy,
                simulated=accuracies[window.index],
                same_decisions=same[at],
                retrained=at in began,
                simulated_retrained=at in began_simulated,
            )


def durations(trace: Trace, played: Simulated, turns: Sequence[StepRecord]) -> Iterator[Duration]:
    """Yields the durations of retrainings that the run finished."""
    same = durations_of(trace, turns, played.conditions.checkpoint_delay_us or 0)
    real, simulated = _finished(turns), _finished(played.steps)
    for at in sorted(real.keys() & same.keys()):
        other = simulated.get(at)
        found = other if other is not None and other.config == real[at].config else None
        yield Duration(
            scheduler=played.scheduler,
            stream=at[0],
            window=at[1],
            real_s=_seconds(real[at]),
            same_shares_s=same[at],
            simulated_s=None if found is None else _seconds(found),
        )


def _seconds(run: RetrainRun) -> float:
    return us_to_seconds(run.end_us - run.start_us)


def _finished(turns: Sequence[StepRecord]) -> dict[tuple[StreamId, int], RetrainRun]:
    runs = summarize_steps(turns).retrainings
    return {(run.stream, run.window): run for run in runs if run.ended == FINISHED}


def told(rows: Sequence[Row], times: Sequence[Duration], world: str) -> dict[str, Any]:
    """Returns the figures of a comparison."""
    by_scheduler = {
        name: {
            "real": fmean(row.real for row in rows if row.scheduler == name),
            "simulated": fmean(row.simulated for row in rows if row.scheduler == name),
            **_differences([row for row in rows if row.scheduler == name]),
        }
        for name in dict.fromkeys(row.scheduler for row in rows)
    }
    same = [abs(time.same_shares_s - time.real_s) / time.real_s for time in times]
    own = [
        abs(time.simulated_s - time.real_s) / time.real_s for time in times if time.simulated_s is not None
    ]
    return {
        "world": world,
        "target": TARGETS[world],
        "windows": len(rows),
        **_differences(rows),
        "schedulers": by_scheduler,
        "retrainings": len(times),
        "same_shares_median_time_difference": median(same) if same else None,
        "retrainings_with_same_gamma": len(own),
        "median_time_difference": median(own) if own else None,
    }


def _differences(rows: Sequence[Row]) -> dict[str, float]:
    off = [abs(row.simulated - row.real) for row in rows]
    same = [abs(row.same_decisions - row.real) for row in rows]
    return {
        "mean_difference": fmean(off),
        "median_difference": median(off),
        "same_decisions_mean_difference": fmean(same),
        "same_decisions_median_difference": median(same),
        "other_retrainings": sum(row.retrained != row.simulated_retrained for row in rows),
    }


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draws simulated over real accuracy, one panel for each scheduler."""
    names = list(dict.fromkeys(row.scheduler for row in rows))
    figure, axes = new_figure(len(names), 1, 3.4, foot=1.0, sharey=True)
    for panel, name in zip(axes[0], names, strict=True):
        own = [row for row in rows if row.scheduler == name]
        for place, stream in enumerate(dict.fromkeys(row.stream for row in own)):
            dots = [(row.real, row.simulated) for row in own if row.stream == stream]
            panel.plot(*zip(*dots, strict=True), "o", color=f"C{place}", label=stream, alpha=0.8)
        panel.plot([0, 1], [0, 1], "k:", linewidth=1)
        name_axes(panel, name, "accuracy as it was")
        accuracy_axis(panel, "")
    name_axes(axes[0][0], y="simulated")
    legend(figure, axes[0][0])
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120)


def show(console: Console, result: Mapping[str, Any]) -> None:
    """Prints the comparison as a table."""
    rows = [{"scheduler": name, **of} for name, of in result["schedulers"].items()]
    title = f"Simulated and {result['world']} accuracy, by stream and window"
    print_rows(console, title, rows, {"real": ".1%", "simulated": ".1%"})
    own, same = result["median_time_difference"], result["same_shares_median_time_difference"]
    in_time = (
        "no retraining to compare" if own is None else f"{own:.1%} in time, {same:.1%} at the same shares"
    )
    console.print(
        f"All: mean {result['mean_difference']:.4f} (target {result['target']}), median "
        f"{result['median_difference']:.4f}, {in_time}; public simulator: median {PUBLIC_MEDIAN}, "
        f"{PUBLIC_TIME}",
        highlight=False,
    )


def labels_of(fleet: FleetConfig, folders: Sequence[RunFolder]) -> dict[StreamId, LabelledBoxes]:
    """Returns the boxes that any of these runs took labels from, by stream."""
    return {stream.id: labelled_in_any(folders, stream.id) for stream in fleet.streams}


def boxes_of(stream: StreamTrace) -> LabelledBoxes:
    """Returns the objects that a stream's trace excludes from scoring."""
    return LabelledBoxes(
        np.array([left_out.frame for left_out in stream.left_out], np.int64),
        np.array([left_out.box for left_out in stream.left_out], np.float32).reshape(-1, 4),
    )


def recorded(
    fleet: FleetConfig, seed: int, every_start: bool, labelled: Mapping[StreamId, LabelledBoxes], to: Path
) -> Trace:
    """Records a trace, or continues one that was begun before."""
    before = read_trace(to) if to.exists() else None
    extent = Extent(every_start=every_start, also_labelled=labelled)
    return record_fleet(fleet, seed, extent, before, lambda trace: write_trace(to, trace), _Log())


def main(
    fleet_file: Annotated[Path | None, typer.Option("--fleet", help="Fleet file; the default one.")] = None,
    video: Annotated[
        list[Path] | None, typer.Option(help="A camera of files, separated by commas, instead of --fleet.")
    ] = None,
    golden: Annotated[str | None, typer.Option(help="The golden detector of --video.")] = None,
    classes: Annotated[str | None, typer.Option(help="Of --video, separated by commas.")] = None,
    window: Annotated[float | None, typer.Option(help="Seconds of a window.")] = None,
    windows: Annotated[int | None, typer.Option(help="How many.")] = None,
    trace_file: Annotated[
        Path | None, typer.Option("--trace", help="A trace of the fleet; else it is made.")
    ] = None,
    emulated: Annotated[
        Path | None, typer.Option(help="What `ekya compare --json` wrote of it; else it is run.")
    ] = None,
    live: Annotated[
        Path | None, typer.Option(help="Folder of a live run to compare with; its fleet is taken.")
    ] = None,
    schedulers: Annotated[str | None, typer.Option(help=f"Which to compare; {SCHEDULERS}.")] = None,
    full: Annotated[bool, typer.Option("--full", help="A larger trace, and `uniform` too.")] = False,
    seed: Annotated[int, typer.Option(help="Of everything that is drawn.")] = 0,
    runs: Annotated[Path, typer.Option(help="Folder for the trace and the emulated runs.")] = Path("runs"),
    out: Annotated[Path, typer.Option(help="Folder of the CSV and the PNG.")] = RESULTS,
    json_to: Annotated[
        str | None, typer.Option("--json", help="The figures as JSON; - is standard output.")
    ] = None,
) -> None:
    """Compare simulated accuracy with that of runs."""
    with open_output(json_to) as channel:
        logging.basicConfig(
            level=logging.INFO, format="%(message)s", handlers=[RichHandler(console=channel.console)]
        )
        if live is not None:
            world, summaries = "live", [_summary(live)]
            fleet, seed = load_fleet(RunFolder(live).fleet), summaries[0]["seed"]
        else:
            named = CompareConfig(
                fleet=fleet_file,
                video=[str(files) for files in video] if video else None,
                golden=golden,
                task=Task.CLASSIFY if video else None,
                classes=classes,
                window=window,
                windows=windows,
            )
            world, fleet = "emulated", read_fleet(named)
            chosen = schedulers or (FULL_SCHEDULERS if full else SCHEDULERS)
            summaries = _emulated(fleet, tuple(chosen.split(",")), seed, emulated, runs)
        fleet = with_classes(fleet)
        runs.mkdir(parents=True, exist_ok=True)
        folders = [RunFolder(Path(summary["folder"])) for summary in summaries]
        labelled = labels_of(fleet, folders)
        left_out = sum(len(boxes.frame) for boxes in labelled.values())
        kept = runs / f"{fleet.name}-seed{seed}-{left_out}-left-out{'-full' if full else ''}.parquet"
        trace = read_trace(trace_file) if trace_file else recorded(fleet, seed, full, labelled, kept)
        cameras = {stream.id for stream in fleet.streams}
        trace = replace(trace, streams=tuple(one for one in trace.streams if one.stream in cameras))
        for stream in trace.streams:
            labelled[stream.stream] = LabelledBoxes.join_boxes([labelled[stream.stream], boxes_of(stream)])
        rows: list[Row] = []
        times: list[Duration] = []
        for folder in folders:
            scheduler, _, turns = read_journal(folder.journal)
            played = simulate(
                trace, make_scheduler(scheduler), conditions_of(fleet, seed).with_preset(scheduler)
            )
            rows += compared(trace, played, score_run(folder, fleet, labelled), turns)
            times += durations(trace, played, turns)
        result = {"fleet": fleet.name, **told(rows, times, world)}
        name = f"fidelity_{fleet.name}_{world}".replace("-", "_")
        out.mkdir(parents=True, exist_ok=True)
        write_text_atomic(out / f"{name}.csv", as_csv([asdict(row) for row in rows]))
        draw(rows, out / f"{name}.png")
        channel.write_json(result)
        show(channel.console, result)


def _summary(folder: Path) -> dict[str, Any]:
    written = RunFolder.open(folder).summary
    if not written.is_file():
        raise UserError(f"{written}: is not there, so the run has not ended; name one that has with --live")
    summary: dict[str, Any] = json.loads(written.read_text())
    return summary | {"folder": str(folder)}


def _emulated(
    fleet: FleetConfig, schedulers: tuple[str, ...], seed: int, done: Path | None, runs: Path
) -> list[dict[str, Any]]:
    """Returns summaries of emulated runs, scored on the same objects."""
    if done is None:
        found = compare(fleet, schedulers, (seed,), RunOptions(runs=runs, seed=seed))["runs"]
    else:
        found = json.loads(done.read_text())["runs"]
    return [run for run in found if run["scheduler"] in schedulers and run["seed"] == seed]


if __name__ == "__main__":
    run(main, "python experiments/fidelity.py --trace city.parquet --emulated compare.json --json -")
