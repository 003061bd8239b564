"""Protocol of fleet policies."""

from dataclasses import dataclass
from typing import Protocol

from ekya.fleet.policy.assignment import Decision
from ekya.fleet.policy.view import FleetView


@dataclass(frozen=True, slots=True)
class Calls:
    """When a policy is called, as long as a job is there.

    Attributes:
        on_events: at each arrival and end of a job, and when a node fails or returns. Otherwise such an event
            waits for the next call.
        every_us: at all multiples of this time on the fleet's clock; None: only at events.
    """

    on_events: bool
    every_us: int | None = None

    def __post_init__(self) -> None:
        """Checks that it is called at all.

        Raises:
            ValueError: it would never be called.
        """
        if not self.on_events and self.every_us is None:
            raise ValueError("a policy that is called neither on events nor periodically decides nothing")

    def at(self, now_us: int, happened: bool) -> bool:
        """Returns whether it is called now."""
        return (self.on_events and happened) or (self.every_us is not None and now_us % self.every_us == 0)


ON_EVENTS = Calls(on_events=True)


class FleetPolicy(Protocol):
    """Schedules trainings on a fleet: place, time and resources."""

    @property
    def name(self) -> str:
        """Name in the registry."""

    @property
    def calls(self) -> Calls:
        """When it is called."""

    def decide(self, view: FleetView) -> Decision:
        """Assigns each job of the view or lets it wait, with a reason; no resource is given out twice.

        Equal views get equal decisions: what is to be remembered of a job is part of the decision.
        """
