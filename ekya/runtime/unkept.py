"""Weights that serve before the object store has them; nobody hears that they serve until it does.

Whatever is told may be relied on: a worker that dies is made again from the weights that serve, and those
that serve again after a roll-back or a resume must be there.
"""

import logging
from collections.abc import Collection
from typing import Any

import ray
from ray.exceptions import RayError

from ekya.core import events as ev
from ekya.core.ids import ModelVersion, StreamId

_LOG = logging.getLogger(__name__)


class UnkeptWeights:
    """What is on its way to the object store, and what is to be told when it is there."""

    def __init__(self) -> None:
        self._coming: dict[tuple[StreamId, ModelVersion], Any] = {}
        self._untold: dict[Any, ev.ModelSwapped] = {}

    @property
    def references(self) -> Collection[Any]:
        """What to wait for, for ``hear``."""
        return self._untold.keys()

    def add(self, stream: StreamId, version: ModelVersion, kept: Any) -> None:
        """Weights that may serve before they are kept.

        Args:
            stream, version: whose they are, and their number.
            kept: reference to something small that comes with them.
        """
        self._coming[stream, version] = kept

    def wait_for(self, event: ev.Event) -> ev.Event | None:
        """The event, unless it tells that such weights serve: that comes with ``hear``."""
        if not isinstance(event, ev.ModelSwapped):
            return event
        kept = self._coming.pop((event.stream, event.version), None)
        if kept is None:
            return event
        self._untold[kept] = event
        return None

    def hear(self, reference: Any) -> ev.ModelSwapped | None:
        """Weights are there, or will never be: what can be told now."""
        event = self._untold.pop(reference)
        try:
            ray.get(reference)
        except RayError:
            _LOG.error(
                "%s: weights %d serve, and were lost with their trainer; whatever begins anew begins with "
                "those before them",
                event.stream,
                event.version,
            )
            return None
        return event
