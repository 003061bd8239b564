"""Actor calls in flight, each with the callback that handles its reply."""

import logging
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from ekya.runtime.actors.actor_errors import in_words

_LOG = logging.getLogger(__name__)
_GATHER_S = 0.005
"""After the first reply, how long to collect others: planning once is better than twice."""

Callback = Callable[[Any, RayError | None], None]
"""Receives the value of a reply and None, or None and the error that the call failed with."""


class RemoteCalls:
    """Table of references and callbacks; only ``wait_replies`` blocks."""

    def __init__(self) -> None:
        self._callbacks: dict[Any, Callback] = {}

    def add_call(self, reference: Any, callback: Callback) -> None:
        """Adds a call in flight; its callback is called once, by ``wait_replies``."""
        self._callbacks[reference] = callback

    def wait_replies(self, timeout_s: float) -> None:
        """Waits for the first reply, collects others that come with it, and calls back for each."""
        done, _ = ray.wait(list(self._callbacks), timeout=timeout_s, num_returns=1)
        if not done:
            return
        more, _ = ray.wait(list(self._callbacks), timeout=_GATHER_S, num_returns=len(self._callbacks))
        for reference in more or done:
            callback = self._callbacks.pop(reference)
            try:
                value = ray.get(reference)
            except RayError as error:
                callback(None, error)
            else:
                callback(value, None)


def log_failure(what: str, _value: Any, error: RayError | None) -> None:
    """Logs the failure of a call, except for a dead actor, which is handled elsewhere."""
    if error is not None and not isinstance(error, RayActorError):
        _LOG.error("%s failed: %s", what, in_words(error))
