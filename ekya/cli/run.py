"""``ekya run``: runs a fleet from the command line's arguments to its report."""

import json
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from rich.console import Console

from ekya.cli.output import Output
from ekya.config.adhoc import fleet_from_videos
from ekya.config.fleet_file import (
    DEFAULT_FLEET,
    FleetConfig,
    RunOptions,
    load_fleet,
    with_play,
)
from ekya.config.shipped import shipped_path
from ekya.core.errors import UnwellRunError, UserError
from ekya.core.units import FULL_GPU_MILLI
from ekya.gpu.backends.registry import choose_backend
from ekya.planning.schedulers.registry import make_scheduler
from ekya.results.report.tables import health_lines, run_table
from ekya.results.storage.run_folder import RunFolder
from ekya.streams.ingest.credentials import has_password, require_set


@dataclass(frozen=True, slots=True)
class FleetArguments:
    """Arguments of the command line about the fleet.

    Attributes:
        fleet: a fleet file.
        videos: for each camera its files, separated by commas.
        golden: the golden detector of ``videos`` and ``cameras``, see ``fleet_from_videos``.
        classes: names separated by commas.
        gpus, window_s, windows, scheduler: override the fleet file.
        speed, loop: override how every recording is played.
        cameras: URLs of live cameras.
    """

    fleet: Path | None = None
    videos: tuple[str, ...] = ()
    golden: str | None = None
    classes: str | None = None
    gpus: float | None = None
    window_s: float | None = None
    windows: int | None = None
    scheduler: str | None = None
    speed: float | None = None
    loop: bool | None = None
    cameras: tuple[str, ...] = ()

    def read(self) -> FleetConfig:
        """Reads the fleet.

        Raises:
            UserError: the arguments contradict each other, or the fleet file is invalid.
        """
        said = {"speed": self.speed, "loop": self.loop}
        play = {key: value for key, value in said.items() if value is not None}
        return with_play(self._named(), play) if play else self._named()

    def _named(self) -> FleetConfig:
        """Returns the fleet of the file, the videos or the cameras."""
        if not self.videos and not self.cameras:
            if self.golden is not None:
                raise UserError(
                    "--golden: it goes with --video and --camera; name one, or set golden: in the fleet file"
                )
            return load_fleet(self.fleet or shipped_path(DEFAULT_FLEET), self._changes())
        option = "--video" if self.videos else "--camera"
        if self.fleet is not None:
            raise UserError(f"{option}: {self.fleet} names the cameras already; use one of the two")
        if self.golden is None:
            raise UserError(f"{option}: a golden detector has to label what it shows; add --golden FILE")
        _require_no_url(self.videos)
        _require_no_password(self.cameras)
        videos = [[Path(file) for file in video.split(",") if file] for video in self.videos]
        return fleet_from_videos(videos, self.golden, self._changes(), self.cameras)

    def _changes(self) -> Mapping[str, object]:
        classes = self.classes.split(",") if self.classes not in (None, "auto") else self.classes
        said = {
            "classes": classes,
            "gpus": self.gpus,
            "window_s": self.window_s,
            "windows": self.windows,
            "scheduler": self.scheduler,
        }
        return {key: value for key, value in said.items() if value is not None}


def _require_no_url(videos: tuple[str, ...]) -> None:
    if any("://" in video for video in videos):
        raise UserError("--video: it names files; give the URL of a camera with --camera")


def _require_no_password(cameras: tuple[str, ...]) -> None:
    """Refuses passwords in arguments: all users of the machine, and the dashboard, see a command line."""
    if any(has_password(url) for url in cameras):
        raise UserError(
            "--camera: every user of this machine can see a password on the command line; put it "
            "into an environment variable, say CAM_PASSWORD, and write "
            "'rtsp://user:${CAM_PASSWORD}@host/...' in single quotes"
        )


def run(
    arguments: FleetArguments, options: RunOptions, clock: Literal["wall", "virtual"], output: Output
) -> None:
    """Runs the fleet, then reports.

    Raises:
        UserError: see the called functions.
        KeyboardInterrupt: after Ctrl-C. What happened until then is written and reported, unless nothing had
            happened yet.
        UnwellRunError: most of the streams' windows were unhealthy.
    """
    if arguments.scheduler is not None:
        make_scheduler(arguments.scheduler)
    if options.resume is not None:
        arguments, options = _resumed(arguments, options, clock)
    fleet = arguments.read()
    options = replace(options, scheduler=fleet.scheduler)
    require_runnable(fleet, clock)
    fleet = complete(fleet, options, clock, output.console, gpus_asked_for=arguments.gpus is not None)
    with noticing_ctrl_c() as came:
        folder, summary = run_fleet(fleet, options, clock, output.console)
        output.report(summary)
        print_run(folder, summary, output.console)
    if came():
        raise KeyboardInterrupt
    require_well(summary)


def require_well(summary: Mapping[str, Any]) -> None:
    """Raises an error for an unhealthy run.

    Raises:
        UnwellRunError: most of the streams' windows were unhealthy.
    """
    sentence = summary["health"]["sentence"]
    if sentence is not None:
        raise UnwellRunError(sentence)


def require_runnable(fleet: FleetConfig, clock: Literal["wall", "virtual"]) -> None:
    """Refuses a fleet that cannot be run here, before the run begins.

    Raises:
        UserError: names the reason.
    """
    require_world(fleet.scheduler, fleet, clock)
    if clock == "wall":
        require_credentials(fleet)


def complete(
    fleet: FleetConfig,
    options: RunOptions,
    clock: Literal["wall", "virtual"],
    console: Console,
    *,
    gpus_asked_for: bool,
) -> FleetConfig:
    """Fits the fleet's sizes on virtual time and prints what was given up.

    A live run fits its own sizes from measurements, and lowers ``gpus`` of a file to what the machine has.
    ``gpus`` of the command line are not lowered: the machine must have them.

    Raises:
        UserError: the fleet does not fit.
    """
    if clock == "wall":
        if gpus_asked_for or options.resume is not None:
            require_capacity(fleet, options.shares)
        if options.card is not None:
            raise UserError("--card: a live run plans with what it measures here; add --clock virtual")
        return fleet
    from ekya.pipeline.costs import fitted_by_card, load_card

    card = load_card(options.card)
    fleet, gave_up = fitted_by_card(fleet, overload=options.overload, card=card)
    for sentence in gave_up:
        console.print(f"Given up: {sentence}", highlight=False, soft_wrap=True)
    return fleet


def run_fleet(
    fleet: FleetConfig, options: RunOptions, clock: Literal["wall", "virtual"], console: Console
) -> tuple[RunFolder, dict[str, Any]]:
    """Runs a fleet to its end; returns its folder and its summary.

    Raises:
        UserError: see ``run_live`` and ``run_emulated``.
    """
    folder = RunFolder(_RUNNERS[clock](fleet, options, console))
    return folder, json.loads(folder.summary.read_text(encoding="utf-8"))


def print_run(folder: RunFolder, summary: Mapping[str, Any], console: Console) -> None:
    """Prints the result of a run."""
    console.print(run_table(summary))
    for line in health_lines(summary):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    console.print(f"Everything about this run is in {folder.path}", highlight=False, soft_wrap=True)


def require_world(scheduler: str, fleet: FleetConfig, clock: Literal["wall", "virtual"]) -> None:
    """Refuses live cameras on virtual time, and a scheduler whose needs the run does not meet.

    Such needs are true profiles, weights from other servers in a live run, or a γ outside the fleet's Γ.

    Raises:
        UserError: names the reason, also if there is no such scheduler.
    """
    if clock == "virtual":
        require_recorded(fleet, "on virtual time")
    chosen = make_scheduler(scheduler, offered=fleet.retrain_configs())
    if chosen.needs.true_profile:
        raise UserError(
            f"scheduler: {chosen.name} has to know what a retraining will give, and only a trace does; "
            f"use ekya simulate TRACE --scheduler {chosen.name}"
        )
    if clock == "wall" and (chosen.needs.elsewhere or chosen.needs.kept_models):
        raise UserError(
            f"scheduler: {chosen.name} serves weights that are not trained on the GPUs here, and no server "
            "sends them to a live run; use --clock virtual, or choose another scheduler"
        )


def require_recorded(fleet: FleetConfig, how: str) -> None:
    """Refuses a fleet with live cameras, since their frames cannot be repeated.

    Raises:
        UserError: names the first.
    """
    for stream in fleet.streams:
        if stream.source.live:
            raise UserError(
                f"key 'streams.{stream.id}.source': a live camera cannot be watched {how}, since its frames "
                "come only once; record it with ekya record, or use ekya run without --clock virtual"
            )


def require_credentials(fleet: FleetConfig) -> None:
    """Refuses a fleet whose cameras refer to environment variables that are not set.

    Raises:
        UserError: names the first.
    """
    for stream in fleet.streams:
        if stream.source.live:
            try:
                require_set(stream.source.model_dump_json())
            except UserError as error:
                raise UserError(f"key 'streams.{stream.id}.source.url': {error}") from None


@contextmanager
def noticing_ctrl_c() -> Iterator[Callable[[], bool]]:
    """Yields a function that returns whether Ctrl-C came, even if the run handled it as a request to end."""
    times = 0

    def notice(number: int, frame: FrameType | None) -> None:
        nonlocal times
        times += 1
        signal.default_int_handler(number, frame)

    before = signal.signal(signal.SIGINT, notice)
    try:
        yield lambda: times > 0
    finally:
        signal.signal(signal.SIGINT, before)


def require_capacity(fleet: FleetConfig, shares: str) -> None:
    """Refuses a live run that wants more GPUs than the machine has.

    Raises:
        UserError: it wants more, or the named share backend does not work here.
    """
    chosen = choose_backend(shares)
    there = chosen.capability.capacity_milli
    if fleet.capacity_milli > there:
        raise UserError(
            f"gpus: {fleet.gpus:g} is more than the {there / FULL_GPU_MILLI:g} that are here "
            f"({chosen.capability.why}); use --gpus {there / FULL_GPU_MILLI:g} or less"
        )


def _live(fleet: FleetConfig, options: RunOptions, console: Console) -> Path:
    from ekya.runtime.live import run_live

    return run_live(fleet, options, console)


def _emulated(fleet: FleetConfig, options: RunOptions, console: Console) -> Path:
    from ekya.simulation.emulated.run import run_emulated

    return run_emulated(fleet, options, console)


# Each world imports its own engine, so that virtual time needs no Ray.
_RUNNERS: Mapping[str, Callable[[FleetConfig, RunOptions, Console], Path]] = {
    "wall": _live,
    "virtual": _emulated,
}


def _resumed(arguments: FleetArguments, options: RunOptions, clock: str) -> tuple[FleetArguments, RunOptions]:
    if arguments != FleetArguments():
        raise UserError(
            "--resume: a run goes on with the fleet that it began with; name no other, nor parts of it"
        )
    if clock != "wall":
        raise UserError("--resume: a run on virtual time is quicker run again; leave out --clock virtual")
    named = options.resume or Path()
    folder = RunFolder.open(named if named.is_dir() else options.runs / named)
    return FleetArguments(fleet=folder.fleet), replace(options, resume=folder.path)
