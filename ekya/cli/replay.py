"""``ekya replay``: plays the recordings of a fleet, or a data set, which it prepares first."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ekya.cli import options as opt
from ekya.cli.command import Output, command, require_writable
from ekya.cli.compare import CompareConfig, compare_and_report
from ekya.cli.options import Clock
from ekya.cli.prepare import plan, report, show_examination
from ekya.cli.run import report_run, require_well
from ekya.core.errors import UserError
from ekya.models.edge.architecture_table import Task
from ekya.system.ctrl_c import remember_ctrl_c
from ekya.system.files import holder_of

if TYPE_CHECKING:
    from ekya.config.fleet_file import FleetConfig
    from ekya.results.storage.run_folder import RunFolder

_LOG = logging.getLogger(__name__)

DEFAULT_SCRIPTED = "datasets/synthetic_city/replay.yaml"
"""The shipped fleet that is replayed by default."""


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(opt.LiveOptions):
    """Options of ``ekya replay``."""

    fleet: Annotated[
        Path | None,
        typer.Argument(
            metavar="FLEET|DATASET",
            help="Fleet file with scripts, by default a shipped one; or cityscapes, waymo, sample-list, "
            "image-folder.",
        ),
    ] = None
    root: Annotated[Path | None, typer.Argument(metavar="DIR", help="Folder of the data set.")] = None
    scheduler: Annotated[
        str | None,
        typer.Option(
            *opt.SCHEDULER_NAMES,
            metavar="NAME,...",
            help="Scheduler; several are compared, as by ekya compare.",
        ),
    ] = None
    live: Annotated[
        bool, typer.Option("--live", help="On Ray and the wall clock; a FLEET is, by default.")
    ] = False
    clock: Annotated[
        Clock | None,
        typer.Option(help="wall: as --live. virtual: reproducible, no Ray; default of a data set."),
    ] = None
    streams: Annotated[
        str, typer.Option(metavar="NAME,...", help="Only these streams of the data set; default: all.")
    ] = ""
    drift: opt.Drift = None
    windows: opt.Windows = None
    classes: opt.Classes = None
    golden: opt.Golden = None
    student: opt.Student = None
    offline: opt.Offline = False
    card: opt.Card = None
    json_to: opt.Json = None


@command(
    ReplayConfig,
    "ekya replay",
    "ekya replay --clock virtual --json -",
    "ekya replay my-fleet.yaml --speed 10 --scheduler thief",
    "ekya replay cityscapes ~/data/cityscapes",
    "ekya replay waymo ~/data/waymo --streams location_sf-front --gpus 2 --live",
    "ekya replay waymo ~/data/waymo --drift day-night",
    "ekya replay cityscapes ~/data/cityscapes --schedulers ekya,paper,uniform --json result.json",
)
def replay(config: ReplayConfig, output: Output) -> None:
    """Play a fleet's recordings with the events of its scripts: a lost camera, a new one, a burst, a night.

    At speed 10 recordings and scripts pass ten times as fast: what stands at 30 s comes 3 s into the run.
    Windows keep their length.

    A data set is checked once, as by ekya prepare: index, labels and the fleet file NAME.yaml stay in the
    working folder. What is missing or damaged is named and left out. After an interruption the same command
    goes on, but for a run on virtual time, which begins again. Exit code 3: as of run.
    """
    from ekya.streams.sources import DATASETS

    clock = _clock_of(config)
    if config.fleet is not None and str(config.fleet) in DATASETS:
        if config.root is None:
            raise UserError(f"{config.fleet}: name the folder of the data set behind it")
        config, of_data, last_lines = _prepared(config, config.root, output)
        _play(config, clock or Clock.VIRTUAL, output, of_data, last_lines)
        return
    if config.root is not None:
        raise UserError(f"{config.fleet}: there is no such data set; use one of {', '.join(DATASETS)}")
    if config.streams:
        raise UserError("--streams: it goes with a data set; a fleet file lists its streams itself")
    if config.drift:
        raise UserError("--drift: it goes with a data set; a fleet file has drift: in its sources")
    _play(config, clock or Clock.WALL, output)


def _clock_of(config: ReplayConfig) -> Clock | None:
    if config.live and config.clock is Clock.VIRTUAL:
        raise UserError("--live: it is on the wall clock; leave out one of --live and --clock virtual")
    return Clock.WALL if config.live else config.clock


def _prepared(
    config: ReplayConfig, root: Path, output: Output
) -> tuple[ReplayConfig, Mapping[str, object], Sequence[str]]:
    """Prepares a data set where that is not done yet.

    Returns:
        The options with its fleet file; what was found, as values of JSON; lines for the last screen.
    """
    from ekya.cli.fleet_from_options import read_fleet
    from ekya.pipeline.trained_card import describe_base

    _LOG.info("looking at %s", root)
    preparation = plan(str(config.fleet), root, None, config.streams, config.classes, config.drift, output)
    require_writable("FLEET", preparation.places.out, is_read=True)
    asked = bool(config.streams or config.classes)
    with show_examination(preparation, output, "the same command goes on") as progress:
        findings = preparation.prepare_once(progress, asked=asked)
    out = preparation.places.out
    frames = sum(found.frames for found in findings.values())
    _LOG.info("%s is ready: %d streams, %d frames", out.name, len(findings), frames)
    for name, found in findings.items():
        if found.conditions:
            _LOG.info("%s: %s", name, found.drift_in_words)
    config = replace(config, fleet=out, streams="", classes=None, drift=None)
    fleet = read_fleet(replace(config, scheduler=None))
    if aside := ", ".join(stream.id for stream in fleet.pretraining):
        _LOG.info("not played, but there for ekya edge train and ekya golden train: %s", aside)
    base = [describe_base(fleet.edge, out.name)] if fleet.edge.task is Task.CLASSIFY else []
    last_lines = [*base, *preparation.describe_left_out(findings)]
    return config, {"data": report(preparation, findings, out)}, last_lines


def _play(
    config: ReplayConfig,
    clock: Clock,
    output: Output,
    of_data: Mapping[str, object] | None = None,
    last_lines: Sequence[str] = (),
) -> None:
    """Runs the fleet file, or compares several schedulers on it, and reports."""
    from ekya.api.playing import play_fleet
    from ekya.cli.fleet_from_options import make_run_options, read_fleet
    from ekya.config.fleet_reading import load_fleet
    from ekya.config.shipped import shipped_path
    from ekya.pipeline.setup import script_cues
    from ekya.results.metrics.script_events import occurred_cues
    from ekya.results.storage.journal import read_journal
    from ekya.results.storage.run_folder import RunFolder

    config = replace(config, fleet=config.fleet or shipped_path(DEFAULT_SCRIPTED))
    if "," in (config.scheduler or ""):
        compare_and_report(_to_compare(config, clock), output, of_data, last_lines)
        return
    fleet = read_fleet(config)
    _require_playable(fleet, is_data=of_data is not None)
    resumed = _interrupted_run(config, fleet) if of_data is not None and clock is Clock.WALL else None
    if resumed is not None:
        _LOG.info("%s was interrupted, and goes on", resumed.path)
        fleet = load_fleet(resumed.fleet)
    options = make_run_options(config, fleet, resumed.path if resumed else None)
    live, asked = clock is Clock.WALL, config.gpus is not None
    with remember_ctrl_c():
        finished = play_fleet(fleet, options, output.console, live=live, gpus_asked_for=asked)
        journal = read_journal(RunFolder(finished.folder).journal)
        cues = tuple(occurred_cues(script_cues(fleet), journal[2]))
        report_run(finished, output, cues, of_data, last_lines)
    require_well(finished)


def _interrupted_run(config: ReplayConfig, fleet: "FleetConfig") -> "RunFolder | None":
    """Returns the newest live run of this name, if it was interrupted and was of the same; else None."""
    from ekya.config.fleet_reading import load_fleet
    from ekya.results.storage.journal import read_header
    from ekya.results.storage.run_folder import RunFolder
    from ekya.runtime.driver.resuming import require_resumable

    name = config.name or fleet.name
    journals = [*config.runs.glob(f"{name}/journal.jsonl"), *config.runs.glob(f"{name}-*/journal.jsonl")]
    newest = max(journals, key=lambda file: file.stat().st_mtime, default=None)
    if newest is None or holder_of(newest.parent) is not None:
        return None
    folder = RunFolder(newest.parent)
    try:
        kept = load_fleet(folder.fleet)
        seed = read_header(folder.journal)[1].seed
        require_resumable(folder)
    except UserError:  # complete, too short, or of another version
        return None
    named = ["streams", "classes", "golden", "edge", "window_s", "scheduler"]
    named += [key for key in ("gpus", "windows") if fleet.is_set(key)]
    is_same = all(getattr(kept, key) == getattr(fleet, key) for key in named)
    return folder if is_same and seed == config.seed else None


def _require_playable(fleet: "FleetConfig", *, is_data: bool) -> None:
    from ekya.api.runnable import require_recorded

    if any(stream.play.script for stream in fleet.streams):
        return
    require_recorded(fleet, "again")
    if not is_data:
        _LOG.info(
            "the recordings are played as they are; a play.script in the fleet file adds events to them"
        )


def _to_compare(config: ReplayConfig, clock: Clock) -> CompareConfig:
    """Returns the options of ``ekya compare`` that do the same.

    Raises:
        UserError: an option is only for a single run.
    """
    names = {one.name for one in fields(CompareConfig)}
    of_both = {one.name: getattr(config, one.name) for one in fields(config) if one.name in names}
    here = {"root", "scheduler", "seed", "clock", "streams"}
    for one in fields(config):
        if one.name not in {*names, *here} and getattr(config, one.name) != one.default:
            raise UserError(
                f"--{one.name.replace('_', '-')}: it is for a run, and several schedulers are compared; "
                "leave it out, or name one scheduler"
            )
    of_both |= {"live": clock is Clock.WALL, "schedulers": config.scheduler, "seeds": str(config.seed)}
    return CompareConfig(**of_both)
