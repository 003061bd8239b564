"""Needs of a scheduler that a fleet or a kind of run cannot meet."""

from ekya.config.fleet_file import FleetConfig
from ekya.core.errors import UserError
from ekya.planning.schedulers.registry import make_scheduler


def require_needs(fleet: FleetConfig, scheduler: str, *, live: bool) -> None:
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
    if live and (chosen.needs.elsewhere or chosen.needs.kept_models):
        raise UserError(
            f"scheduler: {chosen.name} serves weights that are not trained on the GPUs here, and no server "
            "sends them to a live run; use --clock virtual, or choose another scheduler"
        )
