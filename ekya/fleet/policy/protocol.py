"""What a fleet policy is."""

from typing import Protocol

from ekya.fleet.policy.assignment import Decision
from ekya.fleet.policy.view import FleetView


class FleetPolicy(Protocol):
    """Says which training runs where, when and on how much."""

    @property
    def name(self) -> str:
        """Its name in the registry."""

    @property
    def every_us(self) -> int | None:
        """Length of the slots at whose beginning it is asked; None: it is asked when something happens."""

    def decide(self, view: FleetView) -> Decision:
        """Every job of the view is assigned or waits, each with a reason; nothing is given out twice."""
