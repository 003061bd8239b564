"""Finds hung actors: a process that was stopped, or waits for a device for ever, neither works nor dies."""

from typing import Any

from ekya.core.units import US_PER_S

HUNG_US = 60 * US_PER_S
"""Time without a reply to a poll, which an actor answers within a second, whatever else it does."""

LOADING_US = 600 * US_PER_S
"""Time in which a new actor must have loaded and replied, also on a slow machine."""

_OVERSLEPT_US = 5 * US_PER_S
"""After a longer time between two looks it was the caller that was stopped."""


class HungActors:
    """Times of unanswered polls."""

    def __init__(self) -> None:
        self._since_us: dict[Any, int] = {}
        self._looked_us: int | None = None

    def loads(self, actor: Any, now_us: int) -> None:
        """Notes that an actor is made, and polled for the first time."""
        self._since_us[actor] = now_us + LOADING_US - HUNG_US

    def replied(self, actor: Any, now_us: int) -> None:
        """Notes that an actor has replied, and is polled again."""
        self._since_us[actor] = now_us

    def forget(self, actor: Any) -> None:
        """Watches an actor no more."""
        self._since_us.pop(actor, None)

    def take(self, now_us: int) -> list[Any]:
        """Returns the actors that hang, once each; call it often, after all replies were handled."""
        overslept_us = 0 if self._looked_us is None else now_us - self._looked_us
        self._looked_us = now_us
        if overslept_us > _OVERSLEPT_US:
            self._since_us = {actor: at_us + overslept_us for actor, at_us in self._since_us.items()}
        hung = [actor for actor, at_us in self._since_us.items() if now_us - at_us > HUNG_US]
        for actor in hung:
            self.forget(actor)
        return hung
