"""Changes of a whole fleet while it runs: its file as changed, and the events that say so."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ekya.config.fleet_file import FleetConfig
from ekya.config.fleet_reading import with_values
from ekya.config.needs import require_needs
from ekya.core import requests as rq
from ekya.core.errors import UserError
from ekya.planning.schedulers.presets import preset_of


@dataclass(frozen=True, slots=True)
class FleetChange:
    """A change of a fleet.

    Attributes:
        fleet: as changed.
        events: of the loop.
    """

    fleet: FleetConfig
    events: tuple[rq.FleetRequest, ...]


def fleet_change(fleet: FleetConfig, values: Mapping[str, object], now_us: int) -> FleetChange:
    """Returns a change of a running fleet.

    Args:
        fleet: as it runs.
        values: new ones, by keys of the fleet file: ``min_accuracy`` and ``scheduler``.
        now_us: run time.

    Raises:
        UserError: a value is not possible; says which would be.
    """
    changed = with_values(fleet, values)
    return FleetChange(changed, tuple(_events(changed, values, now_us)))


def _events(changed: FleetConfig, values: Mapping[str, object], now_us: int) -> Iterator[rq.FleetRequest]:
    if "min_accuracy" in values:
        yield rq.MinAccuracyChanged(now_us, changed.min_accuracy)
    if "scheduler" in values:
        require_needs(changed, changed.scheduler, live=True)
        if preset_of(changed.scheduler) is not None:
            raise UserError(
                f"scheduler: {changed.scheduler} is a preset, which sets what cannot be changed while the "
                "service runs; name a scheduler alone"
            )
        yield rq.SchedulerChanged(now_us, changed.scheduler)
