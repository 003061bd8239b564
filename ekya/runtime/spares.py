"""Spare inference processes, loaded but without a stream, that replace one that dies."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from ekya.gpu.host_memory import read_host_memory

_LOG = logging.getLogger(__name__)

_ROOM_BYTES = 2 << 30
"""Free host memory needed to make a spare process: about three times what one takes."""

_Key = frozenset[tuple[str, str]]


class Spares:
    """At most one spare process for each environment, which is fixed when a process starts.

    Args:
        make: makes the actor of a spare process, for a GPU, once some references have replies.
    """

    def __init__(self, make: Callable[[Mapping[str, str], int, Sequence[Any]], Any]) -> None:
        self._make = make
        self._there: dict[_Key, tuple[Any, Any]] = {}

    def make(self, environment: Mapping[str, str], gpu: int, weights: Any, after: Sequence[Any]) -> None:
        """Makes the spare process of an environment, if there is none; it loads at the lowest priority.

        Args:
            environment: of the process.
            gpu: position of its GPU.
            weights: reference to a model for warm-up.
            after: references of replies that it waits for before its process starts.
        """
        key = frozenset(environment.items())
        memory = read_host_memory()
        if key in self._there or (memory is not None and memory.free_bytes < _ROOM_BYTES):
            return
        actor = self._make(environment, gpu, after)
        self._there[key] = (actor, actor.warm_up.remote(weights))

    def take(self, environment: Mapping[str, str]) -> Any:
        """Removes and returns the spare process of an environment; None if none is ready."""
        key = frozenset(environment.items())
        if key not in self._there:
            return None
        actor, warm = self._there[key]
        if not ray.wait([warm], timeout=0)[0]:
            return None
        del self._there[key]
        try:
            ray.get([warm, actor.process.remote()])
        except RayError as error:
            _LOG.warning("a spare process was dead: %s", error)
            return None
        return actor
