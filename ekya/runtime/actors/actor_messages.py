"""Messages of actors to the driver: events and their time, warnings, user errors and errors in one line."""

import logging
import queue
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from inspect import isfunction
from typing import Any, TypeVar

from ray.exceptions import RayError

from ekya.config.fleet_file import FleetConfig
from ekya.core.errors import UserError
from ekya.core.events import Event, Warned
from ekya.core.units import StreamId
from ekya.streams.ingest.credentials import mask_passwords


class RunClock:
    """Run time: microseconds since the run began, the same in every process of a machine."""

    def __init__(self, started_monotonic_ns: int) -> None:
        self.started_monotonic_ns = started_monotonic_ns

    def now_us(self) -> int:
        """Returns microseconds since the run began; negative before it."""
        return (time.monotonic_ns() - self.started_monotonic_ns) // 1000


class Mailbox:
    """Queue of one actor's events in order of occurrence. Any thread may put, one takes."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def put(self, event: Event) -> None:
        """Adds an event."""
        self._events.put(event)

    def drain(self, timeout_s: float) -> list[Event]:
        """Returns all queued events; waits up to ``timeout_s`` for the first."""
        try:
            events = [self._events.get(timeout=timeout_s)]
        except queue.Empty:
            return []
        while True:
            try:
                events.append(self._events.get_nowait())
            except queue.Empty:
                return events


_MOST_TEXTS = 50
"""Upper bound on the warnings of a process within ``_FORGET_S``: a text with a number differs each time."""

_FORGET_S = 3600.0
"""Time after which a text is reported again."""


class WarningQueue(logging.Handler):
    """Logging handler that queues each distinct warning and error of this process, at most once an hour.

    Args:
        source: name of the process.
    """

    def __init__(self, source: str) -> None:
        super().__init__(logging.WARNING)
        self._source = source
        self._texts: dict[str, float] = {}
        self._queue: queue.SimpleQueue[Warned] = queue.SimpleQueue()

    def emit(self, record: logging.LogRecord) -> None:
        """Queues a record, unless its text was queued shortly before."""
        try:
            text = _in_a_line(record)
        except Exception:
            self.handleError(record)
            return
        now_s = time.monotonic()
        self._texts = {known: at_s for known, at_s in self._texts.items() if now_s - at_s < _FORGET_S}
        if text not in self._texts and len(self._texts) < _MOST_TEXTS:
            self._texts[text] = now_s
            self._queue.put(Warned(0, self._source, text))

    def drain_warnings(self) -> list[Warned]:
        """Returns the warnings since the last call, with time 0."""
        taken: list[Warned] = []
        while True:
            try:
                taken.append(self._queue.get_nowait())
            except queue.Empty:
                return taken


def received_warning(warned: Warned, now_us: int, fleet: FleetConfig) -> Warned:
    """Returns a warning with its time, and with the fleet's secrets masked."""
    return replace(warned, t_us=now_us, text=mask_passwords(warned.text, fleet.named_secrets))


def _in_a_line(record: logging.LogRecord) -> str:
    text = " ".join(record.getMessage().split())
    error = record.exc_info[1] if record.exc_info else None
    return text if error is None else f"{text} ({type(error).__name__}: {' '.join(str(error).split())})"


_Answer = TypeVar("_Answer")


def make_hosting_class(
    title: str,
    name: str,
    load: Callable[[], type[Any]],
    methods: Iterable[str],
    stream_methods: Iterable[str] = (),
) -> type[Any]:
    """Returns an actor class that makes an object of another class in its process and calls its methods.

    The methods raise the UserError that the object's constructor ran into: for an error in a constructor Ray
    passes on only the text of the traceback; for one in a method, the error itself. Warnings logged in the
    process are added to the events that ``poll`` returns.

    Args:
        title: name of the class in Ray's dashboard and in the process list.
        name: display name of the actor.
        load: returns the class of the object; called in the actor's process.
        methods: of the object that other processes call.
        stream_methods: the same of each of its ``streams``; see ``ActorKind``.
    """

    def make(actor: Any, *arguments: object) -> None:
        actor.warnings, actor.error, actor.hosted = WarningQueue(name), None, None
        logging.getLogger().addHandler(actor.warnings)
        try:
            actor.hosted = load()(*arguments)
        except UserError as error:
            actor.error = error

    def hosted(actor: Any) -> Any:
        if actor.error is not None:
            raise actor.error
        return actor.hosted

    def of_object(method: str) -> Callable[..., Any]:
        return lambda actor, *arguments, **named: getattr(hosted(actor), method)(*arguments, **named)

    def of_stream(method: str) -> Callable[..., Any]:
        def call(actor: Any, stream: StreamId, *arguments: object) -> Any:
            one = hosted(actor).streams.get(stream)
            return None if one is None else getattr(one, method)(*arguments)

        return call

    def poll(actor: Any, timeout_s: float) -> list[Event]:
        return [*hosted(actor).poll(timeout_s), *actor.warnings.drain_warnings()]

    members: dict[str, Callable[..., Any]] = {method: of_object(method) for method in methods}
    members |= {method: of_stream(method) for method in stream_methods}
    if "poll" in members:
        members["poll"] = poll
    return type(title, (), {"__init__": make, **members})


def reporting_user_errors(kind: type[Any], name: str) -> type[Any]:
    """Returns an actor class that hosts a class which is loaded already, with all its public methods."""
    public = [one for one, it in vars(kind).items() if isfunction(it) and not one.startswith("_")]
    return make_hosting_class(kind.__name__, name, lambda: kind, public)


def unwrapping_user_error(ask: Callable[[], _Answer]) -> _Answer:
    """Returns what ``ask`` returns.

    Raises:
        UserError: as an actor raised it, of its kind.
    """
    try:
        return ask()
    except RayError as error:
        # Ray raises an error of a derived type, whose text is a traceback; ``cause`` is the original.
        cause = getattr(error, "cause", None)
        if isinstance(cause, UserError):
            raise type(cause)(str(cause)) from error
        raise


def in_words(error: RayError) -> str:
    """Returns one line that describes an error whose text is a page long."""
    cause = getattr(error, "cause", None)
    if cause is not None:
        return f"{type(cause).__name__}: {cause}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    # A failed constructor leaves only the text of a traceback, whose last line is the error.
    return lines[-1] if getattr(error, "actor_init_failed", False) else lines[0]
