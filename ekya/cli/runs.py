"""Commands that run a fleet."""

from pathlib import Path
from typing import Annotated

import typer

from ekya.cli.options import (
    Cameras,
    Card,
    Classes,
    Clock,
    Dashboard,
    FleetFile,
    Golden,
    Gpus,
    Json,
    Loop,
    Overload,
    RunClock,
    RunName,
    Runs,
    Scheduler,
    Seed,
    Shares,
    Speed,
    Videos,
    Window,
    Windows,
    numbers,
)

commands = typer.Typer()


@commands.command(
    epilog="Examples:\n\n"
    "ekya run\n\n"
    "ekya run --clock virtual --scheduler uniform --json -\n\n"
    "ekya run --video north.mp4,south.mp4 --video gate.avi --golden FastestDet.onnx\n\n"
    "ekya run --camera 'rtsp://admin:${CAM_PASSWORD}@10.0.0.5/live' --golden FastestDet.onnx\n\n"
    "ekya run my-fleet.yaml --gpus 2 --windows 20 --name monday\n\n"
    "ekya run --video north.mp4 --golden FastestDet.onnx --loop --windows 100\n\n"
    "ekya run --resume runs/monday"
)
def run(
    fleet: FleetFile = None,
    video: Videos = None,
    camera: Cameras = None,
    golden: Golden = None,
    classes: Classes = None,
    scheduler: Scheduler = None,
    clock: RunClock = Clock.WALL,
    seed: Seed = 0,
    gpus: Gpus = None,
    window: Window = None,
    windows: Windows = None,
    speed: Speed = None,
    loop: Loop = None,
    name: RunName = None,
    runs: Runs = Path("runs"),
    shares: Shares = "auto",
    json_to: Json = None,
    resume: Annotated[Path | None, typer.Option(metavar="RUN", help="Resume an interrupted run.")] = None,
    dashboard: Dashboard = True,
    overload: Overload = False,
    card: Card = None,
) -> None:
    """Keep a fleet of cameras accurate: label, profile, schedule, retrain, infer; then report.

    Exit code 3: the run ended in order, but more than half of the streams' windows were not well.
    """
    from ekya.cli.output import output

    with output(json_to) as out:
        from ekya.cli.run import FleetArguments, run
        from ekya.config.fleet_file import RunOptions

        options = RunOptions(
            seed=seed,
            runs=runs,
            name=name,
            shares=shares,
            dashboard=dashboard,
            resume=resume,
            interactive=out.console.is_terminal,
            overload=overload,
            card=card,
        )
        arguments = FleetArguments(
            fleet,
            tuple(video or ()),
            golden,
            classes,
            gpus,
            window,
            windows,
            scheduler,
            speed,
            loop,
            tuple(camera or ()),
        )
        run(arguments, options, clock.value, out)


@commands.command(
    epilog="Examples:\n\n"
    "ekya replay\n\n"
    "ekya replay --clock virtual --json -\n\n"
    "ekya replay my-fleet.yaml --speed 10 --scheduler thief"
)
def replay(
    fleet: Annotated[
        Path | None,
        typer.Argument(metavar="FLEET", help="Fleet file with scripts; default: a shipped one."),
    ] = None,
    speed: Speed = None,
    scheduler: Scheduler = None,
    clock: RunClock = Clock.WALL,
    seed: Seed = 0,
    gpus: Gpus = None,
    window: Window = None,
    windows: Windows = None,
    loop: Loop = None,
    name: RunName = None,
    runs: Runs = Path("runs"),
    shares: Shares = "auto",
    json_to: Json = None,
    dashboard: Dashboard = True,
    overload: Overload = False,
    card: Card = None,
) -> None:
    """Play a fleet's recordings with the events of its scripts: a lost camera, a new one, a burst, a night.

    At speed 10 recordings and scripts pass ten times as fast: what stands at 30 s comes 3 s into the run.
    Windows keep their length. Exit code 3: as of run.
    """
    from ekya.cli.output import output

    with output(json_to) as out:
        from ekya.cli.replay import replay
        from ekya.cli.run import FleetArguments
        from ekya.config.fleet_file import RunOptions

        options = RunOptions(
            seed=seed,
            runs=runs,
            name=name,
            shares=shares,
            dashboard=dashboard,
            interactive=out.console.is_terminal,
            overload=overload,
            card=card,
        )
        arguments = FleetArguments(
            fleet=fleet,
            gpus=gpus,
            window_s=window,
            windows=windows,
            scheduler=scheduler,
            speed=speed,
            loop=loop,
        )
        replay(arguments, options, clock.value, out)


@commands.command(
    epilog="Examples:\n\n"
    "ekya compare\n\n"
    "ekya compare my-fleet.yaml --schedulers ekya,uniform --seeds 0,1,2,3,4 --json result.json"
)
def compare(
    fleet: FleetFile = None,
    video: Videos = None,
    golden: Golden = None,
    classes: Classes = None,
    schedulers: Annotated[
        str, typer.Option(metavar="NAME,...", help="Schedulers to compare.")
    ] = "ekya,thief,uniform,no-retrain",
    seeds: Annotated[
        str, typer.Option(metavar="N,...", help="Seeds: one run of each scheduler for each seed.")
    ] = "0",
    gpus: Gpus = None,
    window: Window = None,
    windows: Windows = None,
    runs: Runs = Path("runs"),
    json_to: Json = None,
    overload: Overload = False,
    card: Card = None,
) -> None:
    """Run the same frames under several schedulers, on virtual time, and print one table."""
    from ekya.cli.output import output

    with output(json_to) as out:
        from ekya.cli.compare import compare_schedulers
        from ekya.cli.run import FleetArguments
        from ekya.config.fleet_file import RunOptions

        arguments = FleetArguments(fleet, tuple(video or ()), golden, classes, gpus, window, windows)
        options = RunOptions(
            runs=runs, dashboard=False, interactive=out.console.is_terminal, overload=overload, card=card
        )
        compare_schedulers(arguments, tuple(schedulers.split(",")), numbers(seeds), options, out)
