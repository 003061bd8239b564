"""``ekya simulate``: simulates schedulers on a trace, on virtual time, without training."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from ekya.cli import options as opt
from ekya.cli.command import Output, command
from ekya.cli.options import parse_gpu_counts, parse_integers, refuse_repeats
from ekya.core.errors import UserError
from ekya.core.profile import Profiler
from ekya.core.trace import Trace
from ekya.core.units import FULL_GPU_MILLI, seconds_to_us, us_to_seconds
from ekya.planning.placement.pack import Packing
from ekya.results.report.formatting import format_percent, make_table

if TYPE_CHECKING:
    from ekya.simulation.trace.simulate import Conditions

TRACE_FILE = "profiles.parquet"
GENERATED_STREAMS, GENERATED_WINDOWS = 10, 10


@dataclass(frozen=True, kw_only=True)
class SimulateConfig:
    """Options of ``ekya simulate``."""

    trace: Annotated[
        Path | None,
        typer.Argument(
            metavar="TRACE",
            help="What ekya profile recorded, or public profiles as JSON.",
        ),
    ] = None
    generate: Annotated[
        int | None, typer.Option(min=0, metavar="SEED", help="Instead of TRACE: generate one from this seed.")
    ] = None
    scheduler: Annotated[str, typer.Option(*opt.SCHEDULER_NAMES, metavar="NAME,...", help=opt.COMPARED)] = (
        "ekya,thief,uniform,no-retrain"
    )
    gpus: Annotated[str, typer.Option(metavar="N,...", help="Number of GPUs.")] = "2"
    streams: Annotated[
        str | None,
        typer.Option(
            metavar="N|NAME,...", help="Number of streams, the first ones, or their names; default: all."
        ),
    ] = None
    window: opt.Window = None
    windows: opt.Windows = None
    speed: Annotated[
        str | None,
        typer.Option(
            metavar="linear|measured",
            help="With --generate: speed at a share, in proportion or as on a V100.",
        ),
    ] = None
    placement: Annotated[
        Packing, typer.Option(help="How shares stand on GPUs; but in a pool, no job stands on two.")
    ] = Packing.POOL
    error: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            metavar="SD",
            help="Standard deviation of the error of every estimate, 0 for exact ones; they are a run's if "
            "left out.",
        ),
    ] = None
    relative_error: Annotated[
        float, typer.Option(min=0.0, metavar="PART", help="Every estimate is off by this part, up or down.")
    ] = 0.0
    seeds: Annotated[str, typer.Option(metavar="N,...", help="One run for each; they draw errors.")] = "0"
    keep: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the trace that is played there.")
    ] = None
    json_to: opt.Json = None


@command(
    SimulateConfig,
    "ekya simulate profiles.parquet --scheduler ekya,uniform --gpus 1,2,4",
    "ekya simulate --generate 7 --streams 10 --windows 10 --gpus 4 --json -",
    "ekya simulate --generate 7 --scheduler ekya,oracle,reuse,cloud:up=10.2:down=35",
    "ekya simulate --generate 7 --scheduler ekya,paper,ekya@paper,uniform,no-retrain",
    "ekya simulate profiles.parquet --window 30 --error 0.1 --seeds 0,1,2",
    "ekya simulate --generate 7 --gpus 2,4 --placement quantised",
    "ekya simulate public-profiles/ --streams cologne,bremen",
)
def simulate(config: SimulateConfig, output: Output) -> None:
    """Play a trace under several schedulers: what they would have made of it, without training anything."""
    from ekya.planning.schedulers.registry import make_scheduler
    from ekya.simulation.trace.simulate import simulate, summary_of

    conditions = _conditions(config)
    schedulers, gpus, seeds = (
        config.scheduler.split(","),
        parse_gpu_counts(config.gpus),
        parse_integers(config.seeds),
    )
    for option, values in (("--scheduler", schedulers), ("--gpus", gpus), ("--seeds", seeds)):
        refuse_repeats(option, values)
    trace = _played_trace(config)
    _require_known(trace, schedulers)
    for count in gpus:
        _require_room(trace, count, conditions.quantum_milli)
    settings = [
        (name, replace(conditions, gpus=count, seed=seed))
        for name, count, seed in product(schedulers, gpus, seeds)
    ]
    runs: list[dict[str, Any]] = []
    stopped = False
    try:
        with Progress(console=output.console, disable=not output.console.is_terminal, transient=True) as bars:
            for name, setting in bars.track(settings, description="Runs"):
                run = simulate(trace, make_scheduler(name), setting.with_preset(name))
                runs.append(summary_of(run) | {"scheduler": name})
    except KeyboardInterrupt:
        stopped = True
    means = {(name, count): _mean(runs, name, count) for name, count in product(schedulers, gpus)}
    output.write_json(
        {
            "trace": _facts(trace),
            "runs": runs,
            "mean": [
                {"scheduler": name, "gpus": count, "mean_accuracy": mean}
                for (name, count), mean in means.items()
                if mean is not None
            ],
        }
    )
    output.console.print(_table(schedulers, gpus, means))
    played = len({run["seed"] for run in runs})
    output.print_text(
        f"{len(trace.streams)} streams, {trace.windows} windows, {len(trace.retrain_configs)} retraining "
        f"configurations; means over {played} seed{'' if played == 1 else 's'}"
    )
    late = _why_labels_late(trace, replace(conditions, gpus=max(gpus)))
    for note in (late, _why_without_trials(trace, schedulers)):
        if note is not None:
            output.print_text(note)
    if stopped:
        raise KeyboardInterrupt


def _conditions(config: SimulateConfig) -> "Conditions":
    from ekya.simulation.trace.simulate import Conditions

    endless = {
        "--window": config.window,
        "--error": config.error,
        "--relative-error": config.relative_error,
    }
    for option, value in endless.items():
        if value == float("inf"):
            raise UserError(f"{option} {value}: there is no end to it; give a number")
    window_us = None if config.window is None else seconds_to_us(config.window)
    if window_us == 0:
        raise UserError("--window 0: a window has some length; give seconds above 0")
    return Conditions(
        gpus=0.0,
        window_us=window_us,
        windows=config.windows,
        placement=config.placement,
        error_sd=config.error,
        relative_error=config.relative_error,
    )


def _played_trace(config: SimulateConfig) -> Trace:
    """Returns the trace with the chosen streams."""
    from ekya.results.storage.trace_file import write_trace

    if (config.trace is None) == (config.generate is None):
        raise UserError("TRACE: name a trace, or draw one with --generate SEED; one of the two")
    trace = _generated(config) if config.trace is None else _chosen(config, open_trace(config.trace))
    if config.keep is not None:
        write_trace(config.keep, trace)
    return trace


def _generated(config: SimulateConfig) -> Trace:
    from ekya.simulation.trace.generate import generate_trace
    from ekya.simulation.trace.generator_parameters import SPEEDS

    streams = config.streams or str(GENERATED_STREAMS)
    if not streams.isdecimal() or int(streams) == 0:
        raise UserError(f"--streams {streams}: say how many streams to draw, as a number from 1")
    speeds = {str(name): curve for name, curve in SPEEDS.items()}
    if config.speed is not None and config.speed not in speeds:
        raise UserError(f"--speed {config.speed}: choose one of {', '.join(speeds)}")
    speed = speeds[config.speed or "linear"]
    windows = config.windows or GENERATED_WINDOWS
    return generate_trace(config.generate or 0, int(streams), windows, training_speed=speed)


def _chosen(config: SimulateConfig, trace: Trace) -> Trace:
    if config.speed is not None:
        raise UserError("--speed: a recorded trace has its own speed curve; leave --speed out")
    if config.windows is not None and config.windows > trace.windows:
        raise UserError(f"--windows {config.windows}: the trace has {trace.windows}; ask for fewer")
    if config.streams is None:
        return trace
    if config.streams.isdecimal():
        count = int(config.streams)
        if not 1 <= count <= len(trace.streams):
            raise UserError(f"--streams {count}: the trace has {len(trace.streams)}")
        return replace(trace, streams=trace.streams[:count])
    wanted, there = config.streams.split(","), [stream.stream for stream in trace.streams]
    missing = sorted(set(wanted).difference(there))
    if missing:
        raise UserError(f"--streams: the trace has no {missing[0]!r}; choose from {', '.join(there)}")
    return replace(trace, streams=tuple(one for one in trace.streams if one.stream in wanted))


def open_trace(path: Path) -> Trace:
    """Reads the trace at a path.

    The path is a file recorded by ``ekya profile``, the folder of a run, or public profiles: a JSON file of
    a city, or a folder of them.

    Raises:
        UserError: it is none of these, or damaged.
    """
    from ekya.results.storage.trace_file import read_trace
    from ekya.simulation.trace.public_profiles import read_public_profiles

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


def _require_known(trace: Trace, schedulers: Sequence[str]) -> None:
    """Refuses a scheduler that does not exist, or that needs the classes that the trace does not count."""
    from ekya.planning.schedulers.registry import make_scheduler

    counts = any(window.class_histogram for stream in trace.streams for window in stream.windows)
    for scheduler in [make_scheduler(name, offered=trace.retrain_configs) for name in schedulers]:
        if scheduler.needs.kept_models and not counts:
            raise UserError(
                f"--scheduler {scheduler.name}: the trace does not say how many objects of each class "
                "there were; choose another scheduler, or a trace of ekya profile"
            )


def _require_room(trace: Trace, gpus: float, quantum_milli: int) -> None:
    least = quantum_milli * (len(trace.streams) + 1) / FULL_GPU_MILLI
    if gpus < least:
        raise UserError(
            f"--gpus {gpus:g}: {len(trace.streams)} streams need at least {least:g}, {quantum_milli} "
            "thousandths each and as much to prepare with; give more, or choose fewer --streams"
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


def _why_labels_late(trace: Trace, conditions: "Conditions") -> str | None:
    """Returns a note if labels are not made in the time for preparation: cameras without do not retrain."""
    options = conditions.loop_options(trace)
    by_window: dict[int, float] = {}
    for stream in trace.streams:
        for window in stream.windows:
            by_window[window.window] = by_window.get(window.window, 0.0) + window.labelling_gpu_s
    speed = trace.training_speed.speed_at(options.preparation_share_milli)
    took_s, has_s = max(by_window.values()) / speed, us_to_seconds(options.preparation_us)
    if took_s <= has_s:
        return None
    return (
        f"Labels of a window take up to {took_s:.3g} s, and its preparation ends after {has_s:.3g} s, so "
        "some or all cameras are not retrained; "
        f"--window {math.ceil(took_s / conditions.preparation_fraction)} leaves time for them"
    )


def _why_without_trials(trace: Trace, schedulers: Sequence[str]) -> str | None:
    """Returns a note if the paper's profiler is asked for and the trace has trials that it cannot use."""
    from ekya.planning.schedulers.registry import make_scheduler, preset_of

    trials = [trial for stream in trace.streams for one in stream.windows for trial in one.trials]
    own = [trial for trial in trials if trial.profiler is Profiler.PAPER] or trials
    if all(trial.curve is None or trial.curve.accuracies for trial in own):
        return None
    for name in schedulers:
        preset = preset_of(name)
        if preset and preset.profiler is Profiler.PAPER and make_scheduler(name).needs.micro_profile:
            return (
                f"{name}: some trials of this trace measured no accuracy, so the paper's profiler misses "
                "options here; record the trace again"
            )
    return None


def _mean(runs: Sequence[dict[str, Any]], scheduler: str, gpus: float) -> float | None:
    """Returns the mean over the finished seeds; None if there are none."""
    found = [run["mean_accuracy"] for run in runs if (run["scheduler"], run["gpus"]) == (scheduler, gpus)]
    return round(fmean(found), 6) if found else None


def _table(
    schedulers: Sequence[str], gpus: Sequence[float], means: dict[tuple[str, float], float | None]
) -> Table:
    """Builds the table of mean accuracies, by scheduler and number of GPUs; the best per column is bold."""
    counts = (f"{count:g} GPU{'' if count == 1 else 's'}" for count in gpus)
    table = make_table("Scheduler", *counts, title="Mean accuracy")
    best = {count: max(means[name, count] or 0.0 for name in schedulers) for count in gpus}
    for name in schedulers:
        row = ((means[name, count], best[count]) for count in gpus)
        cells = (
            Text(format_percent(own), style="bold" if own is not None and own == top else "")
            for own, top in row
        )
        table.add_row(Text(name), *cells)
    return table
