"""Weights that serve before they are in the object store, and their withheld events.

A reported hot swap must be durable: a worker that dies is restarted from the reported weights, and a
roll-back or a resume needs them too.
"""

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import ray
from ray.exceptions import RayError

from ekya.core import events as ev
from ekya.core.units import ModelVersion, StreamId

_LOG = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Untold:
    """A withheld event, and the reference that it waits for; None once it can be emitted."""

    event: ev.ModelSwapped | ev.RolledBack
    kept: Any


class PendingCheckpoints:
    """Tracks weights on their way to the object store, and withholds their events until they arrive."""

    def __init__(self) -> None:
        self._coming: dict[tuple[StreamId, ModelVersion], Any] = {}
        self._untold: dict[StreamId, list[_Untold]] = {}

    @property
    def references(self) -> Collection[Any]:
        """References to wait for, to be passed to ``hear``."""
        return [one.kept for line in self._untold.values() for one in line if one.kept is not None]

    def add(self, stream: StreamId, version: ModelVersion, kept: Any) -> None:
        """Adds weights that may serve before they are in the object store.

        Args:
            stream: of the weights.
            version: of the weights.
            kept: reference to a small object that arrives together with them.
        """
        self._coming[stream, version] = kept

    def wait_for(self, event: ev.Event) -> Sequence[ev.Event]:
        """Returns the events that can be emitted now.

        Withholds the event if its weights, or earlier ones of the stream, are not in the store yet; ``hear``
        returns it later. A stream's events keep their order, so that the last one reported is what serves.
        """
        if not isinstance(event, ev.ModelSwapped | ev.RolledBack):
            return (event,)
        kept = self._coming.pop((event.stream, event.version), None)
        self._untold.setdefault(event.stream, []).append(_Untold(event, kept))
        return self._tellable(event.stream)

    def hear(self, reference: Any) -> Sequence[ev.Event]:
        """Handles weights that have arrived or are lost; returns the events that can be emitted now."""
        line, one = next(
            (line, one) for line in self._untold.values() for one in line if one.kept == reference
        )
        one.kept = None
        try:
            ray.get(reference)
        except RayError:
            line.remove(one)
            _LOG.error(
                "%s: weights %d serve, and were lost with their trainer; workers that restart begin with "
                "those before them",
                one.event.stream,
                one.event.version,
            )
        return self._tellable(one.event.stream)

    def _tellable(self, stream: StreamId) -> Sequence[ev.Event]:
        line = self._untold[stream]
        told = [one.event for one in takewhile(lambda one: one.kept is None, line)]
        del line[: len(told)]
        return told
