"""Options of one run that are not part of its fleet, and schedulers that a run cannot have."""

from dataclasses import dataclass
from pathlib import Path

from ekya.config.fleet_file import FleetConfig
from ekya.config.scoring import Scoring
from ekya.core.errors import UserError
from ekya.planning.schedulers.registry import DEFAULT_SCHEDULER, make_scheduler
from ekya.planning.schedulers.scheduler import Scheduler

ENDS = "EKYA_ENDS"
"""Variable with which a launcher has a service end after its fleet's last window, with a report."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of one run that are not part of its fleet.

    Attributes:
        scheduler: its name, or an object.
        seed: seed of all random draws.
        runs: folder in which the run's folder is created.
        name: of the run; None takes the fleet's.
        shares: name of a share backend, or ``auto``.
        dashboard: whether to start Ray's dashboard.
        resume: folder of the run to resume, or None.
        overload: whether to run where not even the coarsest inference of all cameras fits.
        card: cost card for durations on virtual time; None for the shipped one.
        score: frames on which a live run of detectors is scored.
        endless: whether it is a service: it runs until stopped, whatever ``windows`` says, goes on with what
            its folder holds, keeps predictions by the hour, and writes no report.
        in_place: whether its folder has its name, and may be there already.
    """

    scheduler: str | Scheduler = DEFAULT_SCHEDULER
    seed: int = 0
    runs: Path = Path("runs")
    name: str | None = None
    shares: str = "auto"
    dashboard: bool = True
    resume: Path | None = None
    overload: bool = False
    card: Path | None = None
    score: Scoring = Scoring.SAMPLE
    endless: bool = False
    in_place: bool = False


def require_end(fleet: FleetConfig) -> None:
    """Refuses a fleet whose run would never end.

    Raises:
        UserError: a stream is looped, and the number of windows is open.
    """
    looped = [stream.id for stream in fleet.streams if stream.play.loop]
    if looped and fleet.windows is None:
        raise UserError(
            f"windows: {looped[0]} is looped and never ends; say how many windows to run (--windows), or use "
            "ekya serve, which runs until it is stopped"
        )


def require_needs(fleet: FleetConfig, scheduler: str | Scheduler, *, live: bool) -> None:
    """Refuses a scheduler with needs that a run of a fleet does not meet.

    Args:
        fleet: to run.
        scheduler: its scheduler, or another to run it with.
        live: whether it runs on the wall clock.

    Raises:
        UserError: names the reason, also if there is no such scheduler, or its γ is none of the fleet.
    """
    chosen = make_scheduler(scheduler, offered=fleet.retrain_configs())
    if chosen.needs.true_profile:
        raise UserError(
            f"scheduler: {chosen.name} has to know what a retraining will give, and only a trace does; "
            f"use ekya simulate TRACE --scheduler {chosen.name}"
        )
    if chosen.needs.kept_models:
        raise UserError(
            f"scheduler: {chosen.name} serves models of earlier windows, and only a trace has them; "
            f"use ekya simulate TRACE --scheduler {chosen.name}"
        )
    if live and chosen.needs.elsewhere:
        raise UserError(
            f"scheduler: {chosen.name} serves weights that are not trained on the GPUs here, and no server "
            "sends them to a live run; use --clock virtual, or choose another scheduler"
        )
