"""Saves the state of long work now and then, without taking much of its time."""

import time
from collections.abc import Callable

_KEEP_EVERY_S = 30.0
_MOST_PART_WRITING = 0.05


class Keeper:
    """Saves every 30 s, or less often if saving takes more than 5% of the time."""

    def __init__(self, save: Callable[[], None]) -> None:
        self._save = save
        self._took_s = 0.0
        self._kept_s = time.monotonic()

    def save_if_due(self) -> None:
        """Saves if it is time to."""
        if time.monotonic() - self._kept_s >= max(_KEEP_EVERY_S, self._took_s / _MOST_PART_WRITING):
            self.save_now()

    def save_if_cheap(self) -> None:
        """Saves unless that would take more than 5% of the time."""
        if time.monotonic() - self._kept_s >= self._took_s / _MOST_PART_WRITING:
            self.save_now()

    def save_now(self) -> None:
        """Saves."""
        began_s = time.monotonic()
        self._save()
        self._kept_s = time.monotonic()
        self._took_s = self._kept_s - began_s
