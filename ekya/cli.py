"""The command line: options of the commands. What a command does is in ``ekya/commands``."""

import logging
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from typer.exceptions import TyperException

from ekya import __version__
from ekya.core.view import Objective
from ekya.errors import UserError
from ekya.placement.pack import Packing
from ekya.streams.credentials import masked

USER_ERROR = 2
"""Exit code for what the user can put right; the command line's own errors have it too."""

STOPPED = 130
"""Exit code after Ctrl-C, as shells expect it."""

app = typer.Typer(
    name="ekya",
    help="Ekya keeps the models of a fleet of cameras accurate on the GPU that is there.",
    epilog="Begin with: ekya run",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Clock(StrEnum):
    """What a run's time is."""

    WALL = "wall"
    VIRTUAL = "virtual"


FleetFile = Annotated[
    Path | None, typer.Argument(metavar="FLEET", help="Fleet file; the shipped synthetic city if left out.")
]
Videos = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE[,FILE...]", help="A camera made of video files; give it once for each camera."
    ),
]
Cameras = Annotated[
    list[str] | None,
    typer.Option(
        metavar="URL",
        help="A live camera: rtsp://, http:// or /dev/videoN; ${NAME} in it is an environment variable.",
    ),
]
Golden = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|NAME",
        help="Golden detector of videos and cameras: FastestDet's .onnx file, a torchvision detector's name, "
        "or NAME=FILE.",
    ),
]
Classes = Annotated[
    str | None, typer.Option(metavar="NAME,...", help="Classes to tell apart; auto takes those that occur.")
]
Gpus = Annotated[
    float | None, typer.Option(min=0.0, help="GPUs to use; without a GPU, CPU cores that stand for them.")
]
Window = Annotated[
    float | None, typer.Option(min=0.0, metavar="SECONDS", help="Length of a retraining window.")
]
Windows = Annotated[int | None, typer.Option(min=1, help="How many windows to run.")]
Speed = Annotated[
    float | None,
    typer.Option(min=0.0, metavar="FACTOR", help="Play recordings so many times as fast."),
]
Loop = Annotated[
    bool | None,
    typer.Option("--loop", help="Begin recordings again where they end; only the first pass is scored."),
]
Runs = Annotated[Path, typer.Option(metavar="DIR", help="Folder in which runs are kept.")]
Json = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE|-", help="Write the result as JSON; - is standard output alone."),
]


@app.command(
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
    scheduler: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Who decides, such as ekya, thief or uniform:inference=300."),
    ] = None,
    clock: Annotated[
        Clock, typer.Option(help="wall: live, on Ray actors. virtual: the same loop, reproducible, no Ray.")
    ] = Clock.WALL,
    seed: Annotated[int, typer.Option(min=0, help="Of everything that is drawn.")] = 0,
    gpus: Gpus = None,
    window: Window = None,
    windows: Windows = None,
    speed: Speed = None,
    loop: Loop = None,
    name: Annotated[str | None, typer.Option(help="Name of the run; the fleet's if left out.")] = None,
    runs: Runs = Path("runs"),
    shares: Annotated[
        str, typer.Option(metavar="auto|cpu|mps", help="What holds jobs to their GPU shares.")
    ] = "auto",
    json_to: Json = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Go on with a run that was interrupted.")
    ] = None,
    dashboard: Annotated[bool, typer.Option(help="Start Ray's dashboard.")] = True,
) -> None:
    """Keep a fleet of cameras accurate: label, profile, schedule, retrain, infer; then report."""
    from ekya.commands.output import output

    with output(json_to) as out:
        from ekya.commands.run import FleetArguments, run
        from ekya.config import RunOptions

        options = RunOptions(
            seed=seed,
            runs=runs,
            name=name,
            shares=shares,
            dashboard=dashboard,
            resume=resume,
            interactive=out.console.is_terminal,
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


@app.command(
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
    seeds: Annotated[str, typer.Option(metavar="N,...", help="One run of each scheduler for each.")] = "0",
    gpus: Gpus = None,
    window: Window = None,
    windows: Windows = None,
    runs: Runs = Path("runs"),
    json_to: Json = None,
) -> None:
    """Run the same frames under several schedulers, on virtual time, and print one table."""
    from ekya.commands.output import output

    with output(json_to) as out:
        from ekya.commands.compare import compare_schedulers
        from ekya.commands.run import FleetArguments
        from ekya.config import RunOptions

        arguments = FleetArguments(fleet, tuple(video or ()), golden, classes, gpus, window, windows)
        options = RunOptions(runs=runs, dashboard=False, interactive=out.console.is_terminal)
        compare_schedulers(arguments, tuple(schedulers.split(",")), _numbers(seeds), options, out)


@app.command(
    epilog="Examples:\n\n"
    "ekya profile --out profiles.parquet\n\n"
    "ekya profile --families 1 --windows 3 --streams cam-1,cam-2 --out quick.parquet\n\n"
    "ekya profile --video north.mp4 --golden FastestDet.onnx --window 16 --out north.parquet\n\n"
    "ekya profile --out profiles.parquet --resume"
)
def profile(
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the trace goes.")],
    fleet: FleetFile = None,
    video: Videos = None,
    golden: Golden = None,
    classes: Classes = None,
    seed: Annotated[int, typer.Option(min=0, help="Of everything that is drawn, as of a run.")] = 0,
    window: Window = None,
    windows: Windows = None,
    streams: Annotated[
        str, typer.Option(metavar="NAME,...", help="Only these streams; all if left out.")
    ] = "",
    families: Annotated[
        int | None, typer.Option(min=1, help="Only so many families of configurations, the cheapest.")
    ] = None,
    every_start: Annotated[
        bool,
        typer.Option(
            help="From every model that may serve by then, not only from the youngest of each family; slow."
        ),
    ] = False,
    resume: Annotated[bool, typer.Option(help="Go on with a trace that was interrupted.")] = False,
    json_to: Json = None,
) -> None:
    """Record a trace: run every retraining configuration to its end, on the crops that a run would see.

    The trace is written after each stream; what was finished before Ctrl-C is a trace of fewer streams.
    """
    from ekya.commands.output import output

    with output(json_to) as channel:
        from ekya.commands.profile import record_trace
        from ekya.commands.run import FleetArguments
        from ekya.core.ids import StreamId
        from ekya.sim.profile import Extent

        arguments = FleetArguments(fleet, tuple(video or ()), golden, classes, None, window, windows)
        chosen = tuple(StreamId(name) for name in streams.split(",") if name)
        extent = Extent(chosen, families, every_start)
        record_trace(arguments, seed, extent, out, resume, channel)


@app.command(
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
        int | None, typer.Option(min=0, metavar="SEED", help="Instead of TRACE: draw one from this seed.")
    ] = None,
    scheduler: Annotated[
        str, typer.Option(metavar="NAME,...", help="Schedulers to compare.")
    ] = "ekya,thief,uniform,no-retrain",
    gpus: Annotated[str, typer.Option(metavar="N,...", help="GPUs that there are.")] = "2",
    streams: Annotated[
        str | None,
        typer.Option(metavar="N|NAME,...", help="The first so many streams, or these; all if left out."),
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
    from ekya.commands.output import output

    with output(json_to) as out:
        from ekya.commands.simulate import TraceArguments, simulate_trace
        from ekya.core.units import seconds_to_us
        from ekya.sim.simulate import Conditions

        for option, value in (("--window", window), ("--error", error), ("--relative-error", relative_error)):
            if value == float("inf"):
                raise UserError(f"{option} {value}: there is no end to it; give a number")
        simulate_trace(
            TraceArguments(trace, generate, streams, windows, speed, keep),
            tuple(scheduler.split(",")),
            _amounts(gpus),
            _numbers(seeds),
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


@app.command(epilog="Examples:\n\nekya doctor\n\nekya doctor --json - | jq .shares")
def doctor(runs: Runs = Path("runs"), json_to: Json = None) -> None:
    """Say what this machine has, what Ekya will use of it, and why not more.

    The exit code is 1 where ekya run cannot work.
    """
    from ekya.commands.output import output

    with output(json_to) as out:
        from ekya.commands.doctor import examine_machine

        if not examine_machine(runs, out):
            raise typer.Exit(1)


@app.command(epilog="Example:\n\nekya calibrate --out my-device.json")
def calibrate(
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the cost card goes.")],
    json_to: Json = None,
) -> None:
    """Measure this device's cost card, from which runs on virtual time take durations."""
    from ekya.commands.output import output

    with output(json_to) as channel:
        from ekya.commands.calibrate import make_cost_card

        make_cost_card(out, channel)


def _numbers(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise UserError(f"--seeds {text}: these are not whole numbers; write them as 0,1,2")
    return tuple(int(part) for part in parts)


def _amounts(text: str) -> tuple[float, ...]:
    try:
        amounts = tuple(float(part) for part in text.split(","))
    except ValueError:
        amounts = ()
    if not amounts or not all(0.0 < amount < float("inf") for amount in amounts):
        raise UserError(f"--gpus {text}: these are not numbers above 0; write them as 1,2,4")
    return amounts


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"ekya {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None and not version:
        typer.echo(context.get_help())


class _StandardError:
    """Wherever standard error goes just now: a live view takes its place while it is on the screen.

    Logins of cameras do not get there, whoever logs them.
    """

    def write(self, text: str) -> None:
        sys.stderr.write(masked(text))

    def flush(self) -> None:
        sys.stderr.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code.

    Args:
        arguments: instead of the process's.
    """
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=_StandardError())
    logging.getLogger("ekya").setLevel(logging.INFO)
    try:
        code = app(args=None if arguments is None else list(arguments), standalone_mode=False)
    except TyperException as error:
        return _fail(f"{error.format_message()} (ekya --help says what is possible)")
    except UserError as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return STOPPED
    return code if isinstance(code, int) else 0


def _fail(sentence: str) -> int:
    sys.stderr.write(f"ekya: {masked(' '.join(sentence.split()))}\n")
    return USER_ERROR
