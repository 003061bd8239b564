"""``ekya run``: runs a fleet, then reports."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ekya.cli import options as opt
from ekya.cli.command import Output, command
from ekya.cli.options import Clock
from ekya.core.errors import UnwellRunError, UserError
from ekya.system.ctrl_c import remember_ctrl_c

if TYPE_CHECKING:
    from ekya.api.results import Finished
    from ekya.results.metrics.script_events import OccurredCue
    from ekya.results.storage.run_folder import RunFolder

_WITH_RESUME = frozenset(
    {
        "clock",
        "seed",
        "name",
        "runs",
        "shares",
        "json_to",
        "resume",
        "dashboard",
        "address",
        "overload",
        "card",
        "score",
    }
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
    from ekya.api.playing import play_fleet
    from ekya.cli.fleet_from_options import make_run_options, read_fleet

    resumed = _folder_to_resume(config)
    fleet = read_fleet(replace(config, fleet=resumed.fleet) if resumed else config)
    options = make_run_options(config, fleet, resumed.path if resumed else None)
    live, asked = config.clock is Clock.WALL, config.gpus is not None
    with remember_ctrl_c():
        finished = play_fleet(fleet, options, output.console, live=live, gpus_asked_for=asked)
        report_run(finished, output)
    require_well(finished)


def report_run(
    finished: "Finished",
    output: Output,
    events: "Sequence[OccurredCue] | None" = None,
    of_data: Mapping[str, object] | None = None,
    last_lines: Sequence[str] = (),
) -> None:
    """Reports the result of a run.

    Args:
        finished: the run.
        output: of the command.
        events: of its scripts, if they are reported as well.
        of_data: added to the JSON.
        last_lines: printed at the end.
    """
    from ekya.results.report.tables import cue_table, health_lines, run_table

    summary = finished.summary.values
    script = {} if events is None else {"script": [event.json_values() for event in events]}
    output.write_json({**summary, **script, **(of_data or {})})
    tables = [*([cue_table(events)] if events else []), run_table(summary)]
    last = f"Everything about this run is in {finished.folder}"
    output.print_parts([*tables, *health_lines(summary), last, *last_lines])


def require_well(finished: "Finished") -> None:
    """Refuses the result of an unhealthy run.

    Raises:
        UnwellRunError: most of the streams' windows were unhealthy, or nothing was adapted.
    """
    problem = finished.summary.problem
    if problem is not None:
        raise UnwellRunError(problem)


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
