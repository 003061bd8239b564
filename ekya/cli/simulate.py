"""``ekya simulate``: simulates schedulers on a trace, on virtual time, without training."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from ekya.cli.output import Output
from ekya.core.errors import UserError
from ekya.core.trace import Trace
from ekya.core.units import FULL_GPU_MILLI, us_to_seconds
from ekya.planning.schedulers.registry import make_scheduler
from ekya.results.report.words import percent
from ekya.results.storage.trace_file import read_trace, write_trace
from ekya.simulation.trace.generate import SPEEDS, generate_trace
from ekya.simulation.trace.public_profiles import read_public_profiles
from ekya.simulation.trace.simulate import Conditions, simulate, summary_of

TRACE_FILE = "profiles.parquet"
GENERATED_STREAMS, GENERATED_WINDOWS = 10, 10


@dataclass(frozen=True, slots=True)
class TraceArguments:
    """Arguments of the command line about the trace.

    Attributes:
        trace: a file or folder; None if a trace is generated.
        generate: seed of the generated trace, or None.
        streams: number of streams, or their names separated by commas; None takes all.
        windows: number of windows; None takes all.
        speed: ``linear`` or ``measured``, for a generated trace.
        keep: file to write the trace to, or None.
    """

    trace: Path | None
    generate: int | None
    streams: str | None
    windows: int | None
    speed: str | None
    keep: Path | None

    def read(self) -> Trace:
        """Returns the trace with the chosen streams and windows.

        Raises:
            UserError: the arguments contradict each other, a stream does not exist, or the file is damaged.
        """
        if (self.trace is None) == (self.generate is None):
            raise UserError("TRACE: name a trace, or draw one with --generate SEED; one of the two")
        trace = self._generated() if self.trace is None else self._chosen(open_trace(self.trace))
        if self.keep is not None:
            write_trace(self.keep, trace)
        return trace

    def _generated(self) -> Trace:
        streams = self.streams or str(GENERATED_STREAMS)
        if not streams.isdecimal() or int(streams) == 0:
            raise UserError(f"--streams {streams}: say how many streams to draw, as a number from 1")
        speeds = {str(name): curve for name, curve in SPEEDS.items()}
        if self.speed is not None and self.speed not in speeds:
            raise UserError(f"--speed {self.speed}: choose one of {', '.join(speeds)}")
        windows = self.windows or GENERATED_WINDOWS
        return generate_trace(
            self.generate or 0, int(streams), windows, training_speed=speeds[self.speed or "linear"]
        )

    def _chosen(self, trace: Trace) -> Trace:
        if self.speed is not None:
            raise UserError("--speed: a recorded trace has its own speed curve; leave --speed out")
        if self.windows is not None and self.windows > trace.windows:
            raise UserError(f"--windows {self.windows}: the trace has {trace.windows}; ask for fewer")
        if self.streams is None:
            return trace
        if self.streams.isdecimal():
            count = int(self.streams)
            if not 1 <= count <= len(trace.streams):
                raise UserError(f"--streams {count}: the trace has {len(trace.streams)}")
            return replace(trace, streams=trace.streams[:count])
        names = self.streams.split(",")
        missing = sorted(set(names) - {stream.stream for stream in trace.streams})
        if missing:
            there = ", ".join(stream.stream for stream in trace.streams)
            raise UserError(f"--streams: the trace has no {missing[0]!r}; choose from {there}")
        return replace(trace, streams=tuple(one for one in trace.streams if one.stream in names))


def open_trace(path: Path) -> Trace:
    """Reads the trace at a path.

    The path is a file recorded by ``ekya profile``, the folder of a run, or public profiles: a JSON file of
    a city, or a folder of them.

    Raises:
        UserError: it is none of these, or damaged.
    """
    if not path.exists():
        raise UserError(f"{path}: there is no such file or folder; name a trace")
    if path.suffix == ".json":
        return read_public_profiles([path])
    if not path.is_dir():
        return read_trace(path)
    if (path / TRACE_FILE).is_file():
        return read_trace(path / TRACE_FILE)
    cities = sorted(path.glob("*.json"))
    if not cities:
        raise UserError(f"{path}: holds no {TRACE_FILE} and no JSON profiles; name a trace")
    return read_public_profiles(cities)


def simulate_trace(
    arguments: TraceArguments,
    schedulers: tuple[str, ...],
    gpus: tuple[float, ...],
    seeds: tuple[int, ...],
    conditions: Conditions,
    output: Output,
) -> None:
    """Simulates every scheduler, number of GPUs and seed, then prints one table of means.

    Raises:
        UserError: a scheduler is unknown, a value is given twice, there are too few GPUs, or the trace does
            not exist.
        KeyboardInterrupt: after Ctrl-C; finished runs are reported.
    """
    for option, values in (("--scheduler", schedulers), ("--gpus", gpus), ("--seeds", seeds)):
        if len(set(values)) != len(values):
            raise UserError(f"{option}: the same one stands there twice; keep one of them")
    if conditions.window_us == 0:
        raise UserError("--window 0: a window has some length; give seconds above 0")
    trace = arguments.read()
    chosen = [make_scheduler(name, offered=trace.retrain_configs) for name in schedulers]
    for scheduler in chosen:
        if scheduler.needs.kept_models and not _counts_classes(trace):
            raise UserError(
                f"--scheduler {scheduler.name}: the trace does not say how many objects of each class "
                "there were; choose another scheduler, or a trace of ekya profile"
            )
    for count in gpus:
        _require_room(trace, count, conditions)
    settings = [
        (name, replace(conditions, gpus=count, seed=seed))
        for name, count, seed in product(schedulers, gpus, seeds)
    ]
    runs: list[dict[str, Any]] = []
    stopped = False
    try:
        with Progress(console=output.console, disable=not output.console.is_terminal, transient=True) as bars:
            for name, setting in bars.track(settings, description="Runs"):
                runs.append(summary_of(simulate(trace, make_scheduler(name), setting)) | {"scheduler": name})
    except KeyboardInterrupt:
        stopped = True
    output.report(
        {
            "trace": _facts(trace),
            "runs": runs,
            "mean": [
                {"scheduler": name, "gpus": count, "mean_accuracy": mean}
                for name, count in product(schedulers, gpus)
                if (mean := _mean(runs, name, count)) is not None
            ],
        }
    )
    output.console.print(_table(schedulers, gpus, runs))
    output.console.print(_in_words(trace, runs), highlight=False, soft_wrap=True)
    if stopped:
        raise KeyboardInterrupt


def _counts_classes(trace: Trace) -> bool:
    return any(window.class_histogram for stream in trace.streams for window in stream.windows)


def _require_room(trace: Trace, gpus: float, conditions: Conditions) -> None:
    quantum = conditions.quantum_milli
    least = quantum * (len(trace.streams) + 1) / FULL_GPU_MILLI
    if gpus < least:
        raise UserError(
            f"--gpus {gpus:g}: {len(trace.streams)} streams need at least {least:g}, {quantum} thousandths "
            "each and as much to prepare with; give more, or choose fewer --streams"
        )


def _facts(trace: Trace) -> dict[str, Any]:
    return {
        "gpu": trace.gpu,
        "window_s": us_to_seconds(trace.window_us),
        "windows": trace.windows,
        "streams": [stream.stream for stream in trace.streams],
        "retrain_configs": len(trace.retrain_configs),
        "inference_configs": len(trace.inference_configs),
    }


def _mean(runs: Sequence[dict[str, Any]], scheduler: str, gpus: float) -> float | None:
    """Returns the mean over the finished seeds; None if there are none."""
    found = [run["mean_accuracy"] for run in runs if (run["scheduler"], run["gpus"]) == (scheduler, gpus)]
    return round(fmean(found), 6) if found else None


def _table(schedulers: Sequence[str], gpus: Sequence[float], runs: Sequence[dict[str, Any]]) -> Table:
    """Builds the table of mean accuracies, by scheduler and number of GPUs; the best per column is bold."""
    table = Table(title=Text("Mean accuracy"), title_justify="left")
    table.add_column("Scheduler")
    for count in gpus:
        table.add_column(f"{count:g} GPU{'' if count == 1 else 's'}", justify="right")
    means = {(name, count): _mean(runs, name, count) for name, count in product(schedulers, gpus)}
    for name in schedulers:
        cells = []
        for count in gpus:
            own = means[name, count]
            best = max((means[other, count] or 0.0 for other in schedulers), default=0.0)
            cells.append(Text(percent(own), style="bold" if own is not None and own == best else ""))
        table.add_row(Text(name), *cells)
    return table


def _in_words(trace: Trace, runs: Sequence[dict[str, Any]]) -> str:
    seeds = len({run["seed"] for run in runs})
    return (
        f"{len(trace.streams)} streams, {trace.windows} windows, {len(trace.retrain_configs)} retraining "
        f"configurations; means over {seeds} seed{'' if seeds == 1 else 's'}"
    )
