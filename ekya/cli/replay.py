"""``ekya replay``: runs a fleet whose cameras follow scripts, and reports the scheduler's reaction."""

import logging
from dataclasses import replace
from typing import Literal

from ekya.cli.output import Output
from ekya.cli.run import (
    FleetArguments,
    complete,
    noticing_ctrl_c,
    print_run,
    require_recorded,
    require_runnable,
    require_well,
    run_fleet,
)
from ekya.config.fleet_file import FleetConfig, RunOptions
from ekya.config.shipped import shipped_path
from ekya.pipeline.setup import script_cues
from ekya.results.metrics.cues import occurred_cues
from ekya.results.report.tables import cue_table
from ekya.results.storage.journal import read_journal

_LOG = logging.getLogger(__name__)

DEFAULT_SCRIPTED = "datasets/synthetic_city/replay.yaml"
"""The shipped fleet that is replayed by default."""


def replay(
    arguments: FleetArguments, options: RunOptions, clock: Literal["wall", "virtual"], output: Output
) -> None:
    """Runs the fleet, logs the events of its scripts as they occur, and reports like ``ekya run``.

    Raises:
        UserError: see the called functions; or there are live cameras and no script.
        KeyboardInterrupt: after Ctrl-C; see ``run``.
        UnwellRunError: see ``run``.
    """
    fleet = replace(arguments, fleet=arguments.fleet or shipped_path(DEFAULT_SCRIPTED)).read()
    _require_something_to_play(fleet)
    options = replace(options, scheduler=fleet.scheduler)
    require_runnable(fleet, clock)
    fleet = complete(fleet, options, clock, output.console, gpus_asked_for=arguments.gpus is not None)
    with noticing_ctrl_c() as came:
        folder, summary = run_fleet(fleet, options, clock, output.console)
        told = list(occurred_cues(script_cues(fleet), read_journal(folder.journal)[2]))
        output.report({**summary, "script": [one.values() for one in told]})
        if told:
            output.console.print(cue_table(told))
        print_run(folder, summary, output.console)
    if came():
        raise KeyboardInterrupt
    require_well(summary)


def _require_something_to_play(fleet: FleetConfig) -> None:
    """Refuses a fleet with live cameras and no script; recordings can be played without a script."""
    if any(stream.play.script for stream in fleet.streams):
        return
    require_recorded(fleet, "again")
    _LOG.info("no stream has a play.script: the recordings are played as they are")
