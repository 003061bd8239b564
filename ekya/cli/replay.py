"""``ekya replay``: runs a fleet whose cameras follow scripts, and reports the scheduler's reaction."""

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from ekya.cli import options as opt
from ekya.cli.command import command
from ekya.cli.options import Clock
from ekya.cli.output import Output, ctrl_c_remembered
from ekya.cli.run import ready, report_run, require_well, world_of

_LOG = logging.getLogger(__name__)

DEFAULT_SCRIPTED = "datasets/synthetic_city/replay.yaml"
"""The shipped fleet that is replayed by default."""


@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """Options of ``ekya replay``."""

    fleet: Annotated[
        Path | None,
        typer.Argument(metavar="FLEET", help="Fleet file with scripts; default: a shipped one."),
    ] = None
    speed: opt.Speed = None
    scheduler: opt.Scheduler = None
    clock: opt.RunClock = Clock.WALL
    seed: opt.Seed = 0
    gpus: opt.Gpus = None
    window: opt.Window = None
    windows: opt.Windows = None
    loop: opt.Loop = None
    name: opt.RunName = None
    runs: opt.Runs = Path("runs")
    shares: opt.Shares = "auto"
    json_to: opt.Json = None
    dashboard: opt.Dashboard = True
    overload: opt.Overload = False
    card: opt.Card = None


@command(
    ReplayConfig,
    "ekya replay",
    "ekya replay --clock virtual --json -",
    "ekya replay my-fleet.yaml --speed 10 --scheduler thief",
)
def replay(config: ReplayConfig, output: Output) -> None:
    """Play a fleet's recordings with the events of its scripts: a lost camera, a new one, a burst, a night.

    At speed 10 recordings and scripts pass ten times as fast: what stands at 30 s comes 3 s into the run.
    Windows keep their length. Exit code 3: as of run.
    """
    from ekya.cli.fleet_from_options import read_fleet, require_recorded, run_options
    from ekya.config.shipped import shipped_path
    from ekya.pipeline.setup import script_cues
    from ekya.results.metrics.script_events import occurred_cues
    from ekya.results.storage.journal import read_journal
    from ekya.results.storage.run_folder import RunFolder

    fleet = read_fleet(replace(config, fleet=config.fleet or shipped_path(DEFAULT_SCRIPTED)))
    if not any(stream.play.script for stream in fleet.streams):
        require_recorded(fleet, "again")
        _LOG.info("no stream has a play.script: the recordings are played as they are")
    options = run_options(config, fleet)
    fleet = ready(fleet, options, config.clock, output, gpus_asked_for=config.gpus is not None)
    with ctrl_c_remembered():
        folder = world_of(config.clock)(fleet, options, output.console)
        journal = read_journal(RunFolder(folder).journal)
        summary = report_run(folder, output, tuple(occurred_cues(script_cues(fleet), journal[2])))
    require_well(summary)
