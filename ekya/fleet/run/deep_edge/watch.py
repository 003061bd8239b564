"""Watches a store with a trigger, and starts an update when the condition holds (§III.C)."""

import logging
import time
from collections.abc import Callable

from ekya.core.errors import UserError
from ekya.fleet.run.deep_edge.manager import EdgeManager
from ekya.fleet.run.deep_edge.store import Trigger, WatchedStore

_LOG = logging.getLogger(__name__)

ASK_AGAIN_S = 15.0
"""Back-off after an update could not be launched."""


class StoreWatch:
    """Starts updates as a REST request does, but never while an update of the store is under way.

    Args:
        store: to watch.
        trigger: its condition.
        manager: starts the updates.
        clock: monotonic seconds; tests pass another.
    """

    def __init__(
        self,
        store: WatchedStore,
        trigger: Trigger,
        manager: EdgeManager,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._trigger, self._manager, self._clock = store, trigger, manager, clock
        self._judged = 0
        """Number of new samples when the model's accuracy was last found good enough."""
        self._again_s = float("-inf")
        self._refused = ""

    def look(self) -> None:
        """Checks the condition once; to be called periodically, by one thread at a time."""
        if self._store.name in self._manager.tasks():
            self._judged, self._refused = 0, ""
        elif self._clock() >= self._again_s:
            try:
                self._count()
            except UserError as error:
                self._again_s = self._clock() + ASK_AGAIN_S
                if str(error) != self._refused:
                    _LOG.warning("%s: its trigger gets no update yet: %s", self._store.name, error)
                self._refused = str(error)

    def _count(self) -> None:
        new = self._store.new_samples()
        if new < self._judged:  # an update began and ended between two checks, or samples were deleted
            self._judged = 0
        if not self._trigger.enough(new, self._judged):
            return
        told = f"{new} new samples since the last update began"
        if self._trigger.accuracy is not None:
            newest = self._trigger.samples
            accuracy = self._store.accuracy(newest)
            told += f", {accuracy:.1%} of the newest {newest} right"
            if not self._trigger.fallen(accuracy):
                self._judged = new
                _LOG.info("%s: its trigger waits for %d more: %s", self._store.name, newest, told)
                return
        assignment = self._manager.trigger(self._store, "trigger")
        self._judged, self._refused = 0, ""
        nodes = ", ".join(part.node for part in assignment.parts)
        _LOG.info("%s: its trigger launches an update on %s: %s", self._store.name, nodes, told)
