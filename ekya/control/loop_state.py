"""State of the loop between two steps."""

from dataclasses import dataclass, replace

from ekya.control.options import LoopOptions
from ekya.control.protocols import Batch
from ekya.control.views import Histories
from ekya.core import events as ev
from ekya.core import requests as rq
from ekya.core.plan import Phase
from ekya.core.speed import SpeedCurve
from ekya.core.state import FleetState


@dataclass(frozen=True, slots=True)
class LoopState:
    """State of the loop between steps.

    Attributes:
        fleet: state of the run.
        histories: results of γ per stream in past windows.
        phases: phases of the last plan.
        epoch: number of that plan; 0 before the first.
        training_speed: the options' curve refined by retrainings of earlier windows; None while it is not
            refined. Constant within a window.
    """

    fleet: FleetState
    histories: Histories
    phases: tuple[Phase, ...] = ()
    epoch: int = 0
    training_speed: SpeedCurve | None = None


def options_known(options: LoopOptions, state: LoopState) -> LoopOptions:
    """Returns the options with the training speeds used in this window, and as operators have asked."""
    asked, speed = as_asked(options, state.fleet), state.training_speed
    return asked if speed is None else replace(asked, training_speed=speed)


def as_asked(options: LoopOptions, fleet: FleetState) -> LoopOptions:
    """Returns the options with what operators have changed since the run began."""
    capacity, least = fleet.capacity, fleet.min_accuracy
    if capacity is not None:
        options = replace(
            options,
            capacity_milli=capacity.capacity_milli,
            preparation_share_milli=capacity.preparation_share_milli,
        )
    return options if least is None else replace(options, min_accuracy=least)


def scheduler_of(fleet: FleetState, batch: Batch) -> str | None:
    """Returns the name of the scheduler that decides a step: as an operator has chosen, up to its events.

    None for the one with which the run began.
    """
    changes = [one for one in ev.in_order(batch.events) if isinstance(one, rq.SchedulerChanged)]
    return changes[-1].scheduler if changes else fleet.scheduler
