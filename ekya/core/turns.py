"""One turn of the loop as the journal holds it."""

from dataclasses import dataclass

from ekya.core.commands import Command
from ekya.core.events import Event
from ekya.core.plan import Plan


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """What had happened, what was decided, and what was asked for.

    Attributes:
        now_us: run time of the turn.
        events: in the order in which they came.
        plan: None where nothing that matters had happened.
        commands: in their order.
    """

    now_us: int
    events: tuple[Event, ...]
    plan: Plan | None
    commands: tuple[Command, ...]
