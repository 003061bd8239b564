"""The seams of the loop. The three worlds differ only in what stands behind them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ekya.core.commands import Command
from ekya.core.events import Event
from ekya.core.plan import Plan
from ekya.core.view import WindowView

Planner = Callable[[WindowView], Plan]
"""Asks the scheduler. In the live world it is an actor; on virtual time asking is charged."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What is known at one moment: run time, and the events that came since the last batch."""

    now_us: int
    events: tuple[Event, ...]


class Executor(Protocol):
    """Carries commands out, and tells what comes of them."""

    def wait(self, until_us: int) -> Batch:
        """The next events, as soon as there are any; none of them when ``until_us`` is reached.

        ``now_us`` never goes back, and is at least ``until_us`` where there are no events.
        """

    def execute(self, commands: Sequence[Command]) -> None:
        """Starts carrying commands out, in their order. Never waits for their effects."""


class Journal(Protocol):
    """Append-only. A turn with commands is on disk, with all before it, when ``decision`` returns."""

    def batch(self, batch: Batch) -> None:
        """Before the events are applied."""

    def decision(self, now_us: int, plan: Plan | None, commands: Sequence[Command]) -> None:
        """Before the commands are carried out."""
