"""Changes of a whole fleet while it runs: its file as changed, and the events that say so."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from ekya.config.fleet_file import FleetConfig
from ekya.config.fleet_reading import with_values
from ekya.config.run_options import require_needs
from ekya.config.sizing import fit_fleet
from ekya.control.options import LoopOptions
from ekya.core import requests as rq
from ekya.core.errors import UserError
from ekya.core.host import HostCosts
from ekya.core.units import FULL_GPU_MILLI
from ekya.core.weights import LabelBudget
from ekya.models.edge.architecture_table import Task
from ekya.pipeline.discover_classes import fleet_classes
from ekya.pipeline.host_probe import dearest
from ekya.planning.schedulers.registry import preset_of
from ekya.planning.sizing.fleet_sizes import MachineSize

_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "min_accuracy": "min_accuracy",
        "scheduler": "scheduler",
        "gpus": "gpus",
        "labels_per_window": "golden.labels_per_window",
        "frames_per_window": "golden.frames_per_window",
        "gpu_s_per_window": "golden.gpu_s_per_window",
    }
)
"""Values that can be changed, and their keys in the fleet file."""

CHANGED_SECTIONS = ("min_accuracy", "scheduler", "gpus", "preparation", "golden")
"""Keys of the fleet file that a change may touch."""

_BUDGET = {"labels_per_window", "frames_per_window", "gpu_s_per_window"}


@dataclass(frozen=True, slots=True)
class FleetChange:
    """A change of a fleet.

    Attributes:
        fleet: as changed.
        events: of the loop.
    """

    fleet: FleetConfig
    events: tuple[rq.FleetRequest | rq.RestartRequested, ...]


@dataclass(frozen=True, slots=True)
class RunLimits:
    """What a run began with, and what its machine has.

    Attributes:
        begun: the fleet.
        constants: of its loop.
        costs: of its work.
        machine: where it runs.
    """

    begun: FleetConfig
    constants: LoopOptions
    costs: HostCosts
    machine: MachineSize


def fleet_change(
    fleet: FleetConfig, values: Mapping[str, object], limits: RunLimits, now_us: int
) -> FleetChange:
    """Returns a change of a running fleet.

    Args:
        fleet: as it runs.
        values: new ones, by the keys of the API's ``FleetTerms``.
        limits: of the run.
        now_us: run time.

    Raises:
        UserError: a value is not possible; says which would be.
    """
    changed = with_values(fleet, {_KEYS[key]: value for key, value in values.items()})
    events: list[rq.FleetRequest | rq.RestartRequested] = []
    if "min_accuracy" in values:
        events.append(rq.MinAccuracyChanged(now_us, changed.min_accuracy))
    if "scheduler" in values:
        _require_scheduler(changed)
        events.append(rq.SchedulerChanged(now_us, changed.scheduler))
    if _BUDGET & values.keys():
        events.append(rq.LabelBudgetChanged(now_us, _label_budget(changed, values)))
    if "gpus" in values:
        changed = _at_capacity(changed, fleet.gpus, limits)
        events.append(_capacity_event(changed, limits, now_us))
    return FleetChange(changed, tuple(events))


def with_class(fleet: FleetConfig, name: str) -> FleetConfig:
    """Returns the fleet with one more class, the last one: the numbers of the others stay.

    Raises:
        UserError: there is one of this name, or a source that knows its objects has none of this class.
    """
    classes = fleet_classes(fleet)
    if name in classes:
        raise UserError(f"{name}: there is a class of this name; the classes are {', '.join(classes)}")
    larger = with_values(fleet, {"classes": [*classes, name]})
    for stream in larger.streams:
        if stream.source.gives_truth:
            stream.source.open(fleet_classes(larger))
    return larger


def _at_capacity(changed: FleetConfig, before: float, limits: RunLimits) -> FleetConfig:
    """Returns the fleet at other ``gpus``, with the preparation that it began with, or a smaller one.

    Raises:
        UserError: they are not there, or are too few.
    """
    there, gpus = (limits.machine.capacity_milli or 0) / FULL_GPU_MILLI, changed.gpus
    if gpus > there:
        raise UserError(f"gpus: {gpus:g} is more than the {there:g} that are here; use at most that")
    share_milli = limits.begun.preparation.share_milli
    wished = changed.model_copy(
        update={"preparation": changed.preparation.model_copy(update={"share_milli": share_milli})}
    )
    usual = dearest(limits.costs.streams)
    streams = {one.id: limits.costs.streams.get(one.id, usual) for one in changed.streams}
    costs = replace(limits.costs, streams=streams)
    return fit_fleet(wished, costs, limits.machine, overload=gpus >= before)[0]


def _capacity_event(
    changed: FleetConfig, limits: RunLimits, now_us: int
) -> rq.CapacityChanged | rq.RestartRequested:
    """Returns how a change of the capacity takes effect: processes stay on the GPU where they began."""
    if limits.constants.homes or not (limits.machine.on_cores or changed.gpus <= 1.0):
        return rq.RestartRequested(now_us, f"the fleet has {changed.gpus:g} GPUs from now on")
    return rq.CapacityChanged(now_us, changed.capacity_milli, changed.preparation.share_milli)


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
