"""Calls to objects in other processes: Ray actors here, and objects of other sites over HTTP."""

import logging
from collections.abc import Collection
from concurrent.futures import CancelledError, Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from inspect import isfunction
from typing import Any, Protocol

import ray
from ray.exceptions import RayError

from ekya.core.errors import UserError
from ekya.runtime.actors.actor_messages import in_words

_LOG = logging.getLogger(__name__)

_ENDED = "it has ended"


class CallError(Exception):
    """An object is dead or does not answer, or its method failed; the message says so in one line."""


class Handle(Protocol):
    """An object in another process. Thread-safe, hashable, and equal to another handle of the same object."""

    def call(self, method: str, *arguments: Any) -> "Future[Any]":
        """Calls a method and returns at once.

        The future raises ``UserError`` where the method did, and ``CallError`` for everything else.
        """

    def end_process(self) -> None:
        """Ends the object's process, also a busy one."""


@dataclass(frozen=True, slots=True)
class RayHandle:
    """Handle of a Ray actor. It can be sent to other actors of the same Ray.

    Attributes:
        actor: of Ray.
    """

    actor: Any

    def call(self, method: str, *arguments: Any) -> "Future[Any]":
        """Calls a method of the actor."""
        told: Future[Any] = Future()
        reference = getattr(self.actor, method).remote(*arguments)
        # Ray drops a result without a reference.
        reference.future().add_done_callback(lambda answer, _kept=reference: _pass_on(answer, told))
        return told

    def end_process(self) -> None:
        """Ends the actor's process."""
        ray.kill(self.actor)


class LocalHandle:
    """Handle of an object in this process, for callers that expect one elsewhere.

    Args:
        served: the object.
        threads: number of calls that run at a time; with one, calls run in the order in which they came.
    """

    def __init__(self, served: object, threads: int) -> None:
        self._served = served
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=type(served).__name__)

    def call(self, method: str, *arguments: Any) -> "Future[Any]":
        """Calls a method in one of the object's threads."""
        told: Future[Any] = Future()
        try:
            answer = self._pool.submit(self._called, method, arguments)
        except RuntimeError:
            told.set_exception(CallError(_ENDED))
        else:
            answer.add_done_callback(lambda one: _pass_on(one, told))
        return told

    def end_process(self) -> None:
        """Begins no further call; those that wait fail."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _called(self, method: str, arguments: tuple[Any, ...]) -> Any:
        try:
            return getattr(self._served, method)(*arguments)
        except (UserError, CallError):
            raise
        except Exception as error:
            # Not every caller waits for the result.
            _LOG.exception("%s of %s fails", method, type(self._served).__name__)
            raise CallError(f"{type(error).__name__}: {error}") from error


@dataclass(frozen=True, slots=True)
class PartHandle:
    """Handle of a part of an object, which one of the object's methods reaches by ``call_part``.

    Attributes:
        whole: the object.
        through: name of that method.
    """

    whole: Handle
    through: str

    def call(self, method: str, *arguments: Any) -> "Future[Any]":
        """Calls a method of the part."""
        return self.whole.call(self.through, method, *arguments)

    def end_process(self) -> None:
        self.whole.end_process()


def call_part(part: object, methods: Collection[str], method: str, arguments: tuple[Any, ...]) -> Any:
    """Returns the result of one of these methods of an object.

    Raises:
        CallError: it is another method.
    """
    if method not in methods:
        raise CallError(f"there is no method {method} to call")
    return getattr(part, method)(*arguments)


def public_methods(kind: type[Any]) -> tuple[str, ...]:
    """Returns the names of the methods of a class that others may call."""
    return tuple(name for name, it in vars(kind).items() if isfunction(it) and not name.startswith("_"))


def _pass_on(answer: "Future[Any]", told: "Future[Any]") -> None:
    """Passes a result on, and its errors as those of ``Handle.call``."""
    with suppress(InvalidStateError):  # Its caller has cancelled it.
        try:
            told.set_result(answer.result())
        except RayError as error:
            # Ray raises an error of a derived type, whose text is a traceback; ``cause`` is the original.
            cause = getattr(error, "cause", None)
            if isinstance(cause, UserError):
                told.set_exception(type(cause)(str(cause)))
            else:
                told.set_exception(CallError(in_words(error)))
        except (UserError, CallError) as error:
            told.set_exception(error)
        except CancelledError:
            told.set_exception(CallError(_ENDED))
        except Exception as error:
            told.set_exception(CallError(f"{type(error).__name__}: {error}"))
