"""Runs of a fleet from begin to end, live or on virtual time."""

import logging
from pathlib import Path
from typing import IO, cast

from rich.console import Console

from ekya.api.fleets import Fleet
from ekya.api.results import Finished
from ekya.api.runnable import make_runnable
from ekya.config.fleet_file import FleetConfig
from ekya.config.fleet_reading import with_values
from ekya.config.run_options import RunOptions
from ekya.planning.schedulers.scheduler import Scheduler

_LOG = logging.getLogger(__name__)


class _LoggedText:
    """Text stream that logs each line."""

    def write(self, text: str) -> None:
        for line in filter(str.strip, text.splitlines()):
            _LOG.info("%s", line)

    def flush(self) -> None:
        """Does nothing: lines are logged at once."""


LOGGED: Console = Console(file=cast(IO[str], _LoggedText()))
"""Console where none is given: what was given up, and the like, is logged by the logger ``ekya``."""


def replay(
    fleet: Fleet,
    scheduler: str | Scheduler | None = None,
    *,
    seed: int = 0,
    gpus: float | None = None,
    card: str | Path | None = None,
    overload: bool = False,
    runs: str | Path = "runs",
    name: str | None = None,
    console: Console = LOGGED,
) -> Finished:
    """Plays a fleet's recordings on virtual time: the whole loop with real training, but without Ray.

    The result is the same every time. Ctrl-C ends it early, with a result of what has happened until then.

    Args:
        fleet: of recorded or rendered cameras.
        scheduler: its name, or an object; None takes the fleet's.
        seed: of all random draws.
        gpus: GPUs to use, in place of the fleet's; cores stand for them on the shipped card.
        card: cost card with the durations in virtual time, or the name of a shipped one, such as ``h200``.
        overload: run even where not one frame a second of each camera fits.
        runs: folder in which the run's folder is made.
        name: of the run; None takes the fleet's.
        console: where progress is shown.

    Raises:
        UserError: the fleet cannot be run so.
    """
    options = RunOptions(
        scheduler=scheduler or fleet.config.scheduler,
        seed=seed,
        runs=Path(runs),
        name=name,
        overload=overload,
        card=None if card is None else Path(card),
    )
    return play_fleet(with_gpus(fleet, gpus), options, console, live=False, gpus_asked_for=gpus is not None)


def play_fleet(
    fleet: FleetConfig, options: RunOptions, console: Console, *, live: bool, gpus_asked_for: bool
) -> Finished:
    """Runs a fleet to its end; see ``make_runnable``.

    Each world imports its own engine, so virtual time needs no Ray.

    Raises:
        UserError: the fleet cannot be run here.
    """
    fleet = make_runnable(fleet, options, console, live=live, gpus_asked_for=gpus_asked_for)
    if live:
        from ekya.runtime.driver.live import run_live

        return Finished(run_live(fleet, options, console))
    from ekya.simulation.emulated.run import run_emulated

    return Finished(run_emulated(fleet, options, console))


def with_gpus(fleet: Fleet, gpus: float | None) -> FleetConfig:
    """Returns the configuration of a fleet with this number of GPUs; None leaves its own."""
    return fleet.config if gpus is None else with_values(fleet.config, {"gpus": gpus})
