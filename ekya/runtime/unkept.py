"""Weights that serve before the object store has them; nobody hears that they serve until it does.

Whatever is told may be relied on: a worker that dies is made again from the weights that serve, and those
that serve again after a roll-back or a resume must be there.
"""

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import ray
from ray.exceptions import RayError

from ekya.core import events as ev
from ekya.core.ids import ModelVersion, StreamId

_LOG = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Untold:
    """An event that is to be told, and the reference that it waits for; None where it can be told."""

    event: ev.ModelSwapped | ev.RolledBack
    kept: Any


class UnkeptWeights:
    """What is on its way to the object store, and what is to be told when it is there."""

    def __init__(self) -> None:
        self._coming: dict[tuple[StreamId, ModelVersion], Any] = {}
        self._untold: dict[StreamId, list[_Untold]] = {}

    @property
    def references(self) -> Collection[Any]:
        """What to wait for, for ``hear``."""
        return [one.kept for line in self._untold.values() for one in line if one.kept is not None]

    def add(self, stream: StreamId, version: ModelVersion, kept: Any) -> None:
        """Weights that may serve before they are kept.

        Args:
            stream, version: whose they are, and their number.
            kept: reference to something small that comes with them.
        """
        self._coming[stream, version] = kept

    def wait_for(self, event: ev.Event) -> Sequence[ev.Event]:
        """What can be told now: the event, unless such weights serve by it, or by one of the stream before.

        That comes with ``hear``, in the order in which they served: who is told last is to know what serves.
        """
        if not isinstance(event, ev.ModelSwapped | ev.RolledBack):
            return (event,)
        kept = self._coming.pop((event.stream, event.version), None)
        self._untold.setdefault(event.stream, []).append(_Untold(event, kept))
        return self._tellable(event.stream)

    def hear(self, reference: Any) -> Sequence[ev.Event]:
        """Weights are there, or will never be: what can be told now."""
        line, one = next(
            (line, one) for line in self._untold.values() for one in line if one.kept == reference
        )
        one.kept = None
        try:
            ray.get(reference)
        except RayError:
            line.remove(one)
            _LOG.error(
                "%s: weights %d serve, and were lost with their trainer; whatever begins anew begins with "
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
