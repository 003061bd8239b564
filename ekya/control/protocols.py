"""Interfaces of the loop, whose implementations are the only difference between the three worlds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ekya.core.commands import Command
from ekya.core.events import Event
from ekya.core.plan import Plan
from ekya.core.view import WindowView

Planner = Callable[[WindowView], Plan]
"""Calls the scheduler: an actor in the live world; on virtual time the call's duration is charged."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Input of one step: run time, and the events since the last batch."""

    now_us: int
    events: tuple[Event, ...]


class Executor(Protocol):
    """Carries out commands and reports their effects as events."""

    def wait(self, until_us: int) -> Batch:
        """Returns the next events as soon as there are any, or none when ``until_us`` is reached.

        ``now_us`` never goes back, and is at least ``until_us`` where there are no events.
        """

    def execute_commands(self, commands: Sequence[Command]) -> None:
        """Starts to carry out commands, in their order, without waiting for their effects."""


class Journal(Protocol):
    """Append-only journal. A step with commands, and all before it, is on disk when ``decision`` returns."""

    def record_batch(self, batch: Batch) -> None:
        """Records a batch before its events are applied."""

    def record_decision(self, now_us: int, plan: Plan | None, commands: Sequence[Command]) -> None:
        """Records a decision before its commands are carried out."""
