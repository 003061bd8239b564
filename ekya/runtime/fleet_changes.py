"""Changes of a whole fleet while it runs: its file as changed, and the events that say so."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ekya.config.fleet_file import FleetConfig
from ekya.config.fleet_reading import with_values
from ekya.config.needs import require_needs
from ekya.core import requests as rq
from ekya.core.errors import UserError
from ekya.core.weights import LabelBudget
from ekya.models.edge.cuts import Task
from ekya.planning.schedulers.presets import preset_of

_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "min_accuracy": "min_accuracy",
        "scheduler": "scheduler",
        "labels_per_window": "golden.labels_per_window",
        "frames_per_window": "golden.frames_per_window",
        "gpu_s_per_window": "golden.gpu_s_per_window",
    }
)
"""Values that can be changed, and their keys in the fleet file."""

_BUDGET = {"labels_per_window", "frames_per_window", "gpu_s_per_window"}


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
        values: new ones, by the keys of the API's ``FleetTerms``.
        now_us: run time.

    Raises:
        UserError: a value is not possible; says which would be.
    """
    changed = with_values(fleet, {_KEYS[key]: value for key, value in values.items()})
    return FleetChange(changed, tuple(_events(changed, values, now_us)))


def _events(changed: FleetConfig, values: Mapping[str, object], now_us: int) -> Iterator[rq.FleetRequest]:
    if "min_accuracy" in values:
        yield rq.MinAccuracyChanged(now_us, changed.min_accuracy)
    if "scheduler" in values:
        _require_scheduler(changed)
        yield rq.SchedulerChanged(now_us, changed.scheduler)
    if _BUDGET & values.keys():
        yield rq.LabelBudgetChanged(now_us, _label_budget(changed, values))


def _require_scheduler(changed: FleetConfig) -> None:
    require_needs(changed, changed.scheduler, live=True)
    if preset_of(changed.scheduler) is not None:
        raise UserError(
            f"scheduler: {changed.scheduler} is a preset, which sets what cannot be changed while the "
            "service runs; name a scheduler alone"
        )


def _label_budget(changed: FleetConfig, values: Mapping[str, object]) -> LabelBudget:
    golden, detects = changed.golden, changed.edge.task is Task.DETECT
    if detects and "labels_per_window" in values:
        raise UserError("labels_per_window: edge models that detect learn from frames; use frames_per_window")
    if not detects and "frames_per_window" in values:
        raise UserError(
            "frames_per_window: edge models that classify learn from objects; use labels_per_window"
        )
    return LabelBudget(
        golden.frames_per_window if detects else golden.labels_per_window, golden.gpu_s_per_window
    )
