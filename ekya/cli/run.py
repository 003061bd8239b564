"""``ekya run``: runs a fleet, then reports."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ekya.cli import options as opt
from ekya.cli.command import Output, command, remember_ctrl_c
from ekya.cli.options import Clock
from ekya.core.errors import UnwellRunError, UserError

if TYPE_CHECKING:
    from ekya.config.fleet_file import FleetConfig
    from ekya.config.run_options import RunOptions
    from ekya.results.metrics.script_events import OccurredCue
    from ekya.results.storage.run_folder import RunFolder

_WITH_RESUME = frozenset(
    {"clock", "seed", "name", "runs", "shares", "json_to", "resume", "dashboard", "overload", "card", "score"}
)
"""Options that may stand beside ``--resume``: the others are about the fleet."""


@dataclass(frozen=True, kw_only=True)
class RunConfig(opt.FleetOptions, opt.LiveOptions):
    """Options of ``ekya run``."""

    video: opt.Videos = None
    camera: opt.Cameras = None
    clock: opt.RunClock = Clock.WALL
    windows: opt.Windows = None
    cameras: opt.Repeated = None
    resume: Annotated[Path | None, typer.Option(metavar="RUN", help="Resume an interrupted run.")] = None
    card: opt.Card = None
    json_to: opt.Json = None


@command(
    RunConfig,
    "ekya run",
    "ekya run --clock virtual --scheduler uniform --json -",
    "ekya run --video north.mp4,south.mp4 --video gate.avi --golden yolo11x.onnx",
    "ekya run --video north.mp4 --golden yolo11x.onnx --student FastestDet.onnx --classes person,car",
    "ekya run --camera 'rtsp://admin:${CAM_PASSWORD}@10.0.0.5/live' --golden yolo11x.onnx",
    "ekya run my-fleet.yaml --gpus 2 --windows 20 --name monday",
    "ekya run --clock virtual --card h200 --cameras 16 --windows 3",
    "ekya run --video north.mp4 --golden yolo11x.onnx --loop --windows 100",
    "ekya run --resume runs/monday",
)
def run(config: RunConfig, output: Output) -> None:
    """Keep a fleet of cameras accurate: label, profile, schedule, retrain, infer; then report.

    Exit code 3: the run ended in order, but more than half of the streams' windows were not well, or no model
    was adapted where one had to be.
    """
    from ekya.cli.fleet_from_options import make_run_options, read_fleet

    resumed = _folder_to_resume(config)
    fleet = read_fleet(replace(config, fleet=resumed.fleet) if resumed else config)
    options = make_run_options(config, fleet, resumed.path if resumed else None)
    fleet = make_runnable(fleet, options, config.clock, output, gpus_asked_for=config.gpus is not None)
    with remember_ctrl_c():
        folder = choose_world(config.clock)(fleet, options, output.console)
        summary = report_run(folder, output)
    require_well(summary)


def make_runnable(
    fleet: "FleetConfig", options: "RunOptions", clock: Clock, output: Output, *, gpus_asked_for: bool
) -> "FleetConfig":
    """Returns the fleet as it is run, under its scheduler's preset, or refuses it before the run begins.

    Sizes are fitted here on virtual time only. A live run fits its own from measurements, and lowers ``gpus``
    of a file to what the machine has; ``gpus`` of the command line are not lowered.

    Raises:
        UserError: the fleet cannot be run here.
    """
    from ekya.cli.fleet_from_options import (
        fit_to_card,
        require_capacity,
        require_credentials,
        require_world,
    )
    from ekya.results.storage.run_folder import require_room

    require_world(fleet, fleet.scheduler, clock, endless=options.endless)
    fleet = fleet.with_preset(fleet.scheduler)
    if clock is Clock.VIRTUAL:
        return fit_to_card(fleet, options.card, options.overload, output, gpus_asked_for=gpus_asked_for)
    require_credentials(fleet)
    if gpus_asked_for or options.resume is not None:
        require_capacity(fleet, options.shares)
    if options.card is not None:
        raise UserError("--card: a live run plans with what it measures here; add --clock virtual")
    if options.resume is None and not options.endless:
        require_room(options.runs, options.name or fleet.name)
    return fleet


def choose_world(clock: Clock) -> "Callable[[FleetConfig, RunOptions, Console], Path]":
    """Returns the function that runs a fleet; each imports its own engine, so virtual time needs no Ray."""
    if clock is Clock.WALL:
        from ekya.runtime.driver.live import run_live

        return run_live
    from ekya.simulation.emulated.run import run_emulated

    return run_emulated


def report_run(
    path: Path,
    output: Output,
    events: "Sequence[OccurredCue] | None" = None,
    of_data: Mapping[str, object] | None = None,
    last_lines: Sequence[str] = (),
) -> dict[str, Any]:
    """Reports the result of a run and returns its summary.

    Args:
        path: folder of the run.
        output: of the command.
        events: of its scripts, if they are reported as well.
        of_data: added to the JSON.
        last_lines: printed at the end.
    """
    from ekya.results.report.tables import cue_table, health_lines, run_table
    from ekya.results.storage.run_folder import RunFolder

    summary: dict[str, Any] = json.loads(RunFolder(path).summary.read_text(encoding="utf-8"))
    script = {} if events is None else {"script": [event.json_values() for event in events]}
    output.write_json({**summary, **script, **(of_data or {})})
    if events:
        output.console.print(cue_table(events))
    output.console.print(run_table(summary))
    for line in (*health_lines(summary), f"Everything about this run is in {path}", *last_lines):
        output.print_text(line)
    return summary


def require_well(summary: dict[str, Any]) -> None:
    """Refuses the result of an unhealthy run.

    Raises:
        UnwellRunError: most of the streams' windows were unhealthy, or nothing was adapted.
    """
    if summary["health"]["sentence"] is not None:
        raise UnwellRunError(summary["health"]["sentence"])
    if summary["adaptation"]["missed"]:
        raise UnwellRunError(summary["adaptation"]["sentence"])


def _folder_to_resume(config: RunConfig) -> "RunFolder | None":
    from ekya.results.storage.run_folder import RunFolder
    from ekya.runtime.driver.resuming import require_resumable

    if config.resume is None:
        return None
    if any(
        getattr(config, one.name) != one.default for one in fields(config) if one.name not in _WITH_RESUME
    ):
        raise UserError(
            "--resume: a run goes on with the fleet that it began with; name no other, nor parts of it"
        )
    if config.clock is not Clock.WALL:
        raise UserError("--resume: a run on virtual time is quicker run again; leave out --clock virtual")
    folder = RunFolder.open(config.resume if config.resume.is_dir() else config.runs / config.resume)
    if folder.starts.is_file():
        raise UserError(f"--resume: {folder.path} is a service's; use ekya serve --name {folder.name}")
    # Before anything is started, and before its fleet file is refused for keys that have gone since.
    require_resumable(folder)
    return folder
