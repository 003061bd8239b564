"""Options and arguments that several commands share, and the reading of their values."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ekya.config.scoring import Scoring
from ekya.core.errors import UserError
from ekya.core.units import seconds_to_us
from ekya.models.edge.architecture_table import Task

if TYPE_CHECKING:
    from ekya.results.storage.run_folder import RunFolder


class Clock(StrEnum):
    """Clock of a run: wall time, or virtual time."""

    WALL = "wall"
    VIRTUAL = "virtual"


FleetFile = Annotated[
    Path | None, typer.Argument(metavar="FLEET", help="Fleet file; default: the shipped synthetic city.")
]
Videos = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE[,FILE...]",
        help="A camera made of video files; give it once for each camera. A file with a comma in its name is "
        "given alone.",
    ),
]
Card = Annotated[
    Path | None,
    typer.Option(
        "--card",
        metavar="FILE|NAME",
        help="Cost card with the durations in virtual time, as ekya calibrate writes it, or the name of a "
        "shipped one: h200, t4, jetson_orin (GPU servers; the card says what was measured), cpu_core.",
    ),
]
Repeated = Annotated[
    int | None,
    typer.Option(
        "--cameras",
        min=1,
        metavar="N",
        help="Repeat the fleet's rendered cameras with other seeds until there are N.",
    ),
]
Cameras = Annotated[
    list[str] | None,
    typer.Option(
        metavar="URL",
        help="A live camera: rtsp://, http:// or /dev/videoN; ${NAME} in it is an environment variable.",
    ),
]
LOOK_FOLDER = Path("look")
LookPictures = Annotated[
    Path, typer.Option(metavar="FOLDER", help="Folder for a picture of each stream; made if missing.")
]
Golden = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|NAME",
        help="Golden model of videos and cameras, or instead of the fleet file's: labels (.parquet, "
        ".csv), an .onnx file, NAME=FILE, or a name that ekya models lists. Default for videos and cameras: "
        "the best one here that this machine is fast enough for.",
    ),
]
GoldenLayout = Annotated[
    str | None,
    typer.Option(
        metavar="WORDS",
        help="What the golden detector's .onnx file means, where its answers do not show it, such as "
        "'cxcywh parts'; see golden.layout of the fleet file.",
    ),
]
Student = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|NAME|NAME=FILE",
        help="Model that each stream starts with and that is retrained: published weights (safetensors or "
        ".onnx) of fastestdet, or a model of Ekya's. Default for videos and cameras: fastestdet; base is the "
        "shipped one. Beside a fleet file it replaces edge:, for instance by what ekya edge train has made.",
    ),
]
Offline = Annotated[
    bool, typer.Option("--offline", help="Fetch no model over the network; take those that are here.")
]
EdgeTask = Annotated[
    Task | None,
    typer.Option(
        help="What the models of videos and cameras do: detect objects themselves (default), or classify "
        "boxes that the golden detector finds in every frame."
    ),
]
Classes = Annotated[
    str | None, typer.Option(metavar="NAME,...", help="Classes to tell apart; auto takes those that occur.")
]
Gpus = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        help="GPUs to use; without a GPU, CPU cores that stand for them. Default: chosen for the machine.",
    ),
]
Window = Annotated[
    float | None,
    typer.Option(min=0.0, metavar="SECONDS", help="Length of a retraining window; default: chosen."),
]
Windows = Annotated[int | None, typer.Option(min=1, help="Number of windows to run.")]
SCHEDULER_NAMES = ("--scheduler", "--schedulers")
"""Both names, for an option of one scheduler as for one of several."""
Scheduler = Annotated[
    str | None,
    typer.Option(
        *SCHEDULER_NAMES,
        metavar="NAME",
        help="Scheduler, such as ekya, thief or uniform:inference=300; paper is the paper's scheduler with "
        "its micro-profiler, and NAME@paper another scheduler with that micro-profiler.",
    ),
]
COMPARED = (
    "Schedulers to compare; paper is the paper's with its micro-profiler, NAME@paper another one with that."
)
"""Help of an option with several schedulers."""
RunClock = Annotated[
    Clock, typer.Option(help="wall: live, on Ray actors. virtual: the same loop, reproducible, no Ray.")
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of all random numbers.")]
RunName = Annotated[str | None, typer.Option(help="Name of the run; default: the fleet's.")]
Shares = Annotated[
    str,
    typer.Option(
        metavar="auto|NAME",
        help="Backend that enforces GPU shares: mps, duty-cycle, cpu.",
    ),
]
Dashboard = Annotated[bool, typer.Option(help="Start Ray's dashboard.")]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="auto|HOST:PORT",
        help="Run in a Ray cluster of which this machine is a node; auto: that of RAY_ADDRESS, or of this "
        "machine. Default: a Ray of its own.",
    ),
]
Speed = Annotated[
    float | None,
    typer.Option(min=0.0, metavar="FACTOR", help="Speed-up of recordings."),
]
Loop = Annotated[
    bool | None,
    typer.Option("--loop", help="Repeat recordings; only the first pass is scored."),
]
Overload = Annotated[
    bool,
    typer.Option(
        "--overload", help="Run even where not one frame a second of each camera fits; frames are dropped."
    ),
]
Score = Annotated[
    Scoring,
    typer.Option(
        help="Frames of unlabelled video on which a live run is scored: a sample, with an interval, or all, "
        "which may take longer than the run."
    ),
]
Runs = Annotated[Path, typer.Option(metavar="DIR", help="Folder of all runs.")]
RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="Folder of a run or a service, or its name in --runs.")
]
Json = Annotated[
    str | None,
    typer.Option(
        "--json", metavar="FILE|-", help="Write the result as JSON; - is standard output, and then only that."
    ),
]
OnlyStreams = Annotated[str, typer.Option(metavar="NAME,...", help="Only these streams; default: all.")]
Drift = Annotated[
    str | None,
    typer.Option(
        metavar="ORDER",
        help="Order of waymo's segments, by what they say of light and weather, so that a camera's scene "
        "drifts: day-night, night-day or sun-rain; default: that of time.",
    ),
]
MachineKind = Annotated[
    str, typer.Option(metavar="NAME", help="Type of machine; machines of one type are identical.")
]


@dataclass(frozen=True, kw_only=True)
class FleetOptions:
    """Options of commands that read a fleet, or make one of videos or cameras."""

    fleet: FleetFile = None
    golden: Golden = None
    golden_layout: GoldenLayout = None
    student: Student = None
    task: EdgeTask = None
    classes: Classes = None
    offline: Offline = False


@dataclass(frozen=True, kw_only=True)
class PlayOptions:
    """Options of commands that run a fleet, live or on virtual time."""

    gpus: Gpus = None
    window: Window = None
    overload: Overload = False
    runs: Runs = Path("runs")


@dataclass(frozen=True, kw_only=True)
class LiveOptions(PlayOptions):
    """Options of commands that may run a fleet live."""

    scheduler: Scheduler = None
    speed: Speed = None
    loop: Loop = None
    seed: Seed = 0
    name: RunName = None
    shares: Shares = "auto"
    dashboard: Dashboard = True
    address: Address = None
    score: Score = Scoring.SAMPLE


def split_names(text: str | None) -> tuple[str, ...]:
    """Returns an option's names, separated by commas."""
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def split_files(text: str) -> tuple[Path, ...]:
    """Returns an option's files, separated by commas; the whole text is one if a file is called so."""
    return (Path(text),) if Path(text).is_file() else tuple(Path(one) for one in text.split(",") if one)


def refuse_repeats(option: str, values: Collection[object]) -> None:
    """Refuses a list in which a value occurs twice.

    Raises:
        UserError: names the option.
    """
    if len(set(values)) != len(values):
        raise UserError(f"{option}: the same one stands there twice; keep one of them")


def parse_integers(text: str, option: str = "--seeds") -> tuple[int, ...]:
    """Parses an option's integers, separated by commas.

    Raises:
        UserError: a value is not an integer.
    """
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise UserError(f"{option} {text}: these are not whole numbers; write them as 0,1,2")
    return tuple(map(int, parts))


def parse_fractions(text: str, option: str) -> tuple[float, ...]:
    """Parses an option's fractions in [0, 1], separated by commas, without duplicates.

    Raises:
        UserError: a value is not a fraction.
    """
    parts = tuple(dict.fromkeys(_floats(text)))
    if not parts or not all(0.0 <= part <= 1.0 for part in parts):
        raise UserError(f"{option} {text}: these are no parts of one; write them as 0,0.25,0.5")
    return parts


def parse_gpu_counts(text: str) -> tuple[float, ...]:
    """Parses the positive numbers of ``--gpus``.

    Raises:
        UserError: a value is not a positive number.
    """
    parts = _floats(text)
    if not parts or not all(0.0 < part < float("inf") for part in parts):
        raise UserError(f"--gpus {text}: these are not numbers above 0; write them as 1,2,4")
    return parts


def _floats(text: str) -> tuple[float, ...]:
    """Returns numbers separated by commas; none if one of them is invalid."""
    try:
        return tuple(map(float, text.split(",")))
    except ValueError:
        return ()


def open_run_folder(run: Path, runs: Path = Path("runs")) -> "RunFolder":
    """Returns the folder that an argument names.

    Raises:
        UserError: it holds no run.
    """
    from ekya.results.storage.run_folder import RunFolder

    return RunFolder.open(run if run.is_dir() else runs / run)


def read_failing(words: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """Parses ``--fail``: SITE@SECONDS, one for each server that dies.

    Returns:
        Name and time in microseconds of each.

    Raises:
        UserError: a value has another form.
    """
    failing = []
    for word in words:
        name, _, at_s = word.rpartition("@")
        try:
            at_us = seconds_to_us(float(at_s))
        except (ValueError, OverflowError):
            at_us = -1
        if not name or at_us < 0:
            raise UserError(f"--fail {word}: write SITE@SECONDS")
        failing.append((name, at_us))
    return tuple(failing)
