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
    def every_us(self) -> int | None:
        """Length of its slots: it decides at the beginning of each; None: it decides at each event."""

    def decide(self, view: FleetView) -> Decision:
        """Assigns each job of the view or lets it wait, with a reason; no resource is given out twice."""
