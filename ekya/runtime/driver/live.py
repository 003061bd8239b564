"""`ekya run`: a fleet on Ray actors and the wall clock, from its folder to its report."""

import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import ray
from rich.console import Console

from ekya.config.fleet_file import FleetConfig
from ekya.config.run_options import RunOptions
from ekya.core.errors import UserError
from ekya.results.storage.run_folder import RunFolder
from ekya.runtime.driver.open_run import OpenRun, open_run, start_probe
from ekya.runtime.driver.operator_control import OperatorControl
from ekya.runtime.driver.ray_of_run import opened_ray, settle_address
from ekya.runtime.driver.run_session import RunSession, report_complete
from ekya.system.files import hold_folder


def run_live(
    fleet: FleetConfig,
    options: RunOptions,
    console: Console,
    stop: threading.Event | None = None,
    attach: Callable[[OpenRun, OperatorControl], None] = lambda run, control: None,
) -> Path:
    """Runs a fleet on a Ray of its own, or in a cluster, and returns its run folder.

    Ctrl-C ends the run early; the results until then are measured and written as usual. A complete run that
    lacks only its report is not run again.

    Args:
        fleet: to run.
        options: of the run.
        console: for messages and the screen.
        stop: ends the run early when another thread sets it, as Ctrl-C does.
        attach: called when the loop begins.

    Raises:
        UserError: the fleet does not fit this machine, a part of the set-up fails, or this process has a Ray.
    """
    if ray.is_initialized():
        raise UserError(
            "Ray: this process uses another one; end that with ray.shutdown(), or run in another process"
        )
    if options.resume is not None and report_complete(RunFolder.open(options.resume), fleet):
        return options.resume
    options = settle_address(options)
    with ExitStack() as held:
        if options.resume is not None:
            held.enter_context(hold_folder(options.resume))
        on_ray = held.enter_context(opened_ray(fleet, options, console))
        chosen = on_ray.chosen
        # The machine is measured while Ray starts.
        with start_probe(fleet, options, chosen) as probe:
            note = on_ray.connect()
            with console.status("measuring this machine"):
                run = open_run(fleet, options, chosen, probe.result(), on_ray.nodes)
        if options.resume is None:
            held.enter_context(hold_folder(run.folder.path))
        for sentence in run.gave_up:
            console.print(f"Given up: {sentence}", highlight=False, soft_wrap=True)
        with run.open_shares() as shares:
            session = RunSession(
                run,
                shares,
                note,
                stop=stop or threading.Event(),
                attach=partial(attach, run),
                place_at=on_ray.place_at,
            )
            path = session.run(console)
    return path
