"""Requirements of a run on its fleet, and the sizes of a run on virtual time."""

from pathlib import Path

from rich.console import Console

from ekya.config.fleet_file import FleetConfig
from ekya.config.run_options import RunOptions, require_end, require_needs
from ekya.core.errors import UserError
from ekya.core.units import FULL_GPU_MILLI
from ekya.gpu.backends.registry import choose_backend
from ekya.planning.schedulers.registry import scheduler_word
from ekya.planning.schedulers.scheduler import Scheduler
from ekya.results.storage.run_folder import require_room
from ekya.streams.ingest.camera import CameraSpec
from ekya.streams.ingest.credentials import require_variables


def make_runnable(
    fleet: FleetConfig, options: RunOptions, console: Console, *, live: bool, gpus_asked_for: bool
) -> FleetConfig:
    """Returns the fleet as it is run, under its scheduler's preset, or refuses it before the run begins.

    Sizes are fitted here on virtual time only. A live run fits its own from measurements, and lowers ``gpus``
    of a file to what the machine has; a number that was asked for beside the file is not lowered.

    Raises:
        UserError: the fleet cannot be run here.
    """
    require_world(fleet, options.scheduler, live=live, endless=options.endless)
    fleet = fleet.with_preset(scheduler_word(options.scheduler))
    if not live:
        return fit_to_card(
            fleet, options.card, console, overload=options.overload, gpus_asked_for=gpus_asked_for
        )
    require_credentials(fleet)
    if gpus_asked_for or options.resume is not None:
        require_capacity(fleet, options.shares)
    if options.card is not None:
        raise UserError("--card: a live run plans with what it measures here; add --clock virtual")
    if options.resume is None and not options.in_place:
        require_room(options.runs, options.name or fleet.name)
    return fleet


def fit_to_card(
    fleet: FleetConfig, card: Path | None, console: Console, *, overload: bool, gpus_asked_for: bool
) -> FleetConfig:
    """Fits the sizes of a fleet for virtual time and prints what was given up.

    Args:
        fleet: as read.
        card: cost card; None takes the shipped one.
        console: where it is printed.
        overload: whether not even the coarsest inference of all cameras has to fit.
        gpus_asked_for: whether ``gpus`` was named beside the fleet file; without, a GPU's card has one.

    Raises:
        UserError: the fleet does not fit, or the card is none.
    """
    # It brings torch, for which a fleet that is refused need not wait.
    from ekya.pipeline.costs import fitted_by_card, load_card

    costs = load_card(card)
    if costs.gpu is not None and not gpus_asked_for:
        fleet = fleet.model_copy(update={"gpus": 1.0})
    fleet, gave_up = fitted_by_card(fleet, overload=overload, card=costs)
    for sentence in gave_up:
        console.print(f"Given up: {sentence}", highlight=False, markup=False, soft_wrap=True)
    return fleet


def require_world(
    fleet: FleetConfig, scheduler: str | Scheduler, *, live: bool, endless: bool = False
) -> None:
    """Refuses live cameras on virtual time, a run without end, and a scheduler whose needs are not met.

    Such needs are true profiles, weights from other servers in a live run, or a γ outside the fleet's Γ.

    Args:
        fleet: to run.
        scheduler: its scheduler, or another to run it with.
        live: whether it runs on the wall clock.
        endless: whether it is a service.

    Raises:
        UserError: names the reason, also if there is no such scheduler.
    """
    if not endless:
        require_end(fleet)
    if not live:
        require_recorded(fleet, "on virtual time")
    require_needs(fleet, scheduler, live=live)


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
        for key, url in stream.source.urls.items() if isinstance(stream.source, CameraSpec) else ():
            try:
                require_variables(url)
            except UserError as error:
                raise UserError(f"key 'streams.{stream.id}.source.{key}': {error}") from None
    for lender in fleet.lending.borrow_from:
        require_variables(lender.url, "the token of that service, which is in its folder")


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
