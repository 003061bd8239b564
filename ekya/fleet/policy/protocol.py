"""Protocol of fleet policies."""

from typing import Protocol

from ekya.fleet.policy.assignment import Decision
from ekya.fleet.policy.view import FleetView


class FleetPolicy(Protocol):
    """Schedules trainings on a fleet: place, time and resources."""

    @property
    def name(self) -> str:
        """Name in the registry."""

    @property
    def on_events(self) -> bool:
        """Whether it is called at each arrival and end of a job, and when a node fails or returns.

        Otherwise such an event waits for the next call. It is called only as long as a job is there.
        """

    @property
    def every_us(self) -> int | None:
        """It is called at all multiples of this time on the fleet's clock; None: only at events."""

    def decide(self, view: FleetView) -> Decision:
        """Assigns each job of the view or lets it wait, with a reason; no resource is given out twice.

        Equal views get equal decisions: what is to be remembered of a job is part of the decision.
        """
