"""Commands that record and simulate traces."""

from pathlib import Path
from typing import Annotated

import typer

from ekya.cli.options import (
    Card,
    Classes,
    FleetFile,
    Golden,
    Json,
    Videos,
    Window,
    Windows,
    amounts,
    numbers,
)
from ekya.core.errors import UserError
from ekya.core.view import Objective
from ekya.planning.placement.pack import Packing

commands = typer.Typer()


@commands.command(
    epilog="Examples:\n\n"
    "ekya profile --out profiles.parquet\n\n"
    "ekya profile --families 1 --windows 3 --streams cam-1,cam-2 --out quick.parquet\n\n"
    "ekya profile --video north.mp4 --golden FastestDet.onnx --window 16 --out north.parquet\n\n"
    "ekya profile --out profiles.parquet --resume"
)
def profile(
    out: Annotated[Path, typer.Option(metavar="FILE", help="Trace to write.")],
    fleet: FleetFile = None,
    video: Videos = None,
    golden: Golden = None,
    classes: Classes = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random numbers, as of a run.")] = 0,
    window: Window = None,
    windows: Windows = None,
    streams: Annotated[str, typer.Option(metavar="NAME,...", help="Only these streams; default: all.")] = "",
    families: Annotated[
        int | None, typer.Option(min=1, help="Number of families of configurations, the cheapest first.")
    ] = None,
    every_start: Annotated[
        bool,
        typer.Option(
            help="From every model that may serve by then, not only from the youngest of each family; slow."
        ),
    ] = False,
    resume: Annotated[bool, typer.Option(help="Resume an interrupted trace.")] = False,
    json_to: Json = None,
    card: Card = None,
) -> None:
    """Record a trace: run every retraining configuration to its end, on the crops that a run would see.

    The trace is written after each stream; what was finished before Ctrl-C is a trace of fewer streams.
    """
    from ekya.cli.output import output

    with output(json_to) as channel:
        from ekya.cli.profile import record_trace
        from ekya.cli.run import FleetArguments
        from ekya.core.units import StreamId
        from ekya.simulation.emulated.record_trace import Extent

        arguments = FleetArguments(fleet, tuple(video or ()), golden, classes, None, window, windows)
        chosen = tuple(StreamId(name) for name in streams.split(",") if name)
        extent = Extent(chosen, families, every_start)
        record_trace(arguments, seed, extent, out, resume, channel, card)


@commands.command(
    epilog="Examples:\n\n"
    "ekya simulate profiles.parquet --scheduler ekya,uniform --gpus 1,2,4\n\n"
    "ekya simulate --generate 7 --streams 10 --windows 10 --gpus 4 --json -\n\n"
    "ekya simulate --generate 7 --scheduler ekya,oracle,reuse,cloud:up=10.2:down=35\n\n"
    "ekya simulate runs/monday --window 30 --error 0.1 --seeds 0,1,2\n\n"
    "ekya simulate --generate 7 --gpus 2,4 --placement quantised --objective max-min\n\n"
    "ekya simulate public-profiles/ --streams cologne,bremen"
)
def simulate(
    trace: Annotated[
        Path | None,
        typer.Argument(
            metavar="TRACE",
            help="What ekya profile recorded, the folder of a run, or public profiles as JSON.",
        ),
    ] = None,
    generate: Annotated[
        int | None, typer.Option(min=0, metavar="SEED", help="Instead of TRACE: generate one from this seed.")
    ] = None,
    scheduler: Annotated[
        str, typer.Option(metavar="NAME,...", help="Schedulers to compare.")
    ] = "ekya,thief,uniform,no-retrain",
    gpus: Annotated[str, typer.Option(metavar="N,...", help="Number of GPUs.")] = "2",
    streams: Annotated[
        str | None,
        typer.Option(
            metavar="N|NAME,...", help="Number of streams, the first ones, or their names; default: all."
        ),
    ] = None,
    window: Window = None,
    windows: Windows = None,
    speed: Annotated[
        str | None,
        typer.Option(
            metavar="linear|measured",
            help="With --generate: speed at a share, in proportion or as on a V100.",
        ),
    ] = None,
    placement: Annotated[
        Packing,
        typer.Option(help="How shares stand on GPUs; but in a pool, no job stands on two."),
    ] = Packing.POOL,
    objective: Annotated[
        Objective, typer.Option(help="What is maximised: the mean over streams, or the worst of them.")
    ] = Objective.MEAN,
    error: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            metavar="SD",
            help="Standard deviation of the error of every estimate; as recorded if left out.",
        ),
    ] = None,
    relative_error: Annotated[
        float,
        typer.Option(min=0.0, metavar="PART", help="Every estimate is off by this part, up or down."),
    ] = 0.0,
    seeds: Annotated[str, typer.Option(metavar="N,...", help="One run for each; they draw errors.")] = "0",
    keep: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the trace that is played there.")
    ] = None,
    json_to: Json = None,
) -> None:
    """Play a trace under several schedulers: what they would have made of it, without training anything."""
    from ekya.cli.output import output

    with output(json_to) as out:
        from ekya.cli.simulate import TraceArguments, simulate_trace
        from ekya.core.units import seconds_to_us
        from ekya.simulation.trace.simulate import Conditions

        for option, value in (("--window", window), ("--error", error), ("--relative-error", relative_error)):
            if value == float("inf"):
                raise UserError(f"{option} {value}: there is no end to it; give a number")
        simulate_trace(
            TraceArguments(trace, generate, streams, windows, speed, keep),
            tuple(scheduler.split(",")),
            amounts(gpus),
            numbers(seeds),
            Conditions(
                gpus=0.0,
                window_us=None if window is None else seconds_to_us(window),
                windows=windows,
                placement=placement,
                objective=objective,
                error_sd=error,
                relative_error=relative_error,
            ),
            out,
        )
