"""Journal record of one step of the loop."""

from dataclasses import dataclass

from ekya.core.commands import Command
from ekya.core.events import Event
from ekya.core.plan import Plan


@dataclass(frozen=True, slots=True)
class StepRecord:
    """Events, plan and commands of one step.

    Attributes:
        now_us: run time of the step.
        events: in the order of arrival.
        plan: None where no event required a plan.
        commands: in their order.
    """

    now_us: int
    events: tuple[Event, ...]
    plan: Plan | None
    commands: tuple[Command, ...]
