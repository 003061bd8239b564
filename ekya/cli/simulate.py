"""``ekya simulate``: simulates schedulers on a trace, on virtual time, without training."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from ekya.cli import options as opt
from ekya.cli.command import Output, command
from ekya.cli.options import parse_gpu_counts, parse_integers, refuse_repeats
from ekya.core.errors import UserError
from ekya.core.trace import Trace
from ekya.core.units import seconds_to_us
from ekya.planning.placement.pack import Packing
from ekya.system.ctrl_c import remember_ctrl_c

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
    from ekya.api.simulation import simulate

    for option, value in {
        "--window": config.window,
        "--error": config.error,
        "--relative-error": config.relative_error,
    }.items():
        if value == float("inf"):
            raise UserError(f"{option} {value}: there is no end to it; give a number")
    if config.window is not None and seconds_to_us(config.window) == 0:
        raise UserError("--window 0: a window has some length; give seconds above 0")
    schedulers, gpus, seeds = (
        config.scheduler.split(","),
        parse_gpu_counts(config.gpus),
        parse_integers(config.seeds),
    )
    for option, values in (("--scheduler", schedulers), ("--gpus", gpus), ("--seeds", seeds)):
        refuse_repeats(option, values)
    trace = _played_trace(config)
    with remember_ctrl_c():
        result = simulate(
            trace,
            schedulers,
            gpus,
            seeds,
            window_s=config.window,
            windows=config.windows,
            placement=config.placement,
            error_sd=config.error,
            relative_error=config.relative_error,
            console=output.console,
        )
        output.write_json(result.values)
        output.print_parts(result.printed_parts())


def _played_trace(config: SimulateConfig) -> Trace:
    """Returns the trace with the chosen streams."""
    from ekya.api.simulation import open_trace
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
