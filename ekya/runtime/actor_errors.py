"""Errors and warnings of actors: delivered to the driver as user errors, one-line events or messages."""

import logging
import queue
from collections.abc import Callable
from dataclasses import replace
from inspect import isfunction
from typing import Any, TypeVar

from ray.exceptions import RayError

from ekya.config.fleet_file import FleetConfig
from ekya.core.errors import UserError
from ekya.core.events import Event, Warned
from ekya.streams.ingest.credentials import masked

_MOST_TEXTS = 50
"""Upper bound on the warnings of one process: a text with a number in it differs each time."""


class WarningMail(logging.Handler):
    """Logging handler that queues each distinct warning and error of this process once.

    Args:
        source: name of the process.
    """

    def __init__(self, source: str) -> None:
        super().__init__(logging.WARNING)
        self._source = source
        self._told: set[str] = set()
        self._mail: queue.SimpleQueue[Warned] = queue.SimpleQueue()

    def emit(self, record: logging.LogRecord) -> None:
        """Queues a record, unless its text was queued before."""
        try:
            text = _in_a_line(record)
        except Exception:
            self.handleError(record)
            return
        if text not in self._told and len(self._told) < _MOST_TEXTS:
            self._told.add(text)
            self._mail.put(Warned(0, self._source, text))

    def take(self) -> list[Warned]:
        """Returns the warnings since the last call, with time 0."""
        taken: list[Warned] = []
        while True:
            try:
                taken.append(self._mail.get_nowait())
            except queue.Empty:
                return taken


def as_heard(warned: Warned, now_us: int, fleet: FleetConfig) -> Warned:
    """Returns a warning with its time, and with the secrets in the cameras' URLs and variables masked."""
    named = " ".join(stream.source.model_dump_json() for stream in fleet.streams if stream.source.live)
    return replace(warned, t_us=now_us, text=masked(warned.text, named))


def _in_a_line(record: logging.LogRecord) -> str:
    text = " ".join(record.getMessage().split())
    error = record.exc_info[1] if record.exc_info else None
    return text if error is None else f"{text} ({type(error).__name__}: {' '.join(str(error).split())})"


_Answer = TypeVar("_Answer")


def reporting_user_errors(kind: type[Any], name: str) -> type[Any]:
    """Returns an actor class whose methods raise the UserError that its constructor ran into.

    For an error in a constructor Ray passes on only the text of the traceback; for one in a method, the
    error itself. Warnings logged in the process are added to the events that ``poll`` returns.

    Args:
        kind: the class.
        name: display name of the actor.
    """

    def make(actor: Any, *arguments: object) -> None:
        actor.complaint = None
        actor.warnings = _mail_of_this_process(name)
        try:
            kind.__init__(actor, *arguments)
        except UserError as error:
            actor.complaint = error

    def or_complain(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(actor: Any, *arguments: object, **named: object) -> Any:
            if actor.complaint is not None:
                raise actor.complaint
            return method(actor, *arguments, **named)

        return call

    def poll(actor: Any, timeout_s: float) -> list[Event]:
        return [*kind.poll(actor, timeout_s), *actor.warnings.take()]

    public: dict[str, Callable[..., Any]] = {
        name: it for name, it in vars(kind).items() if isfunction(it) and not name.startswith("_")
    }
    if "poll" in public:
        public["poll"] = poll
    methods = {name: or_complain(method) for name, method in public.items()}
    # Ray's dashboard and the list of processes show the class's name.
    return type(kind.__name__, (kind,), {"__init__": make, **methods})


def _mail_of_this_process(name: str) -> WarningMail:
    mail = WarningMail(name)
    logging.getLogger().addHandler(mail)
    return mail


def unwrapping_user_error(ask: Callable[[], _Answer]) -> _Answer:
    """Returns what ``ask`` returns.

    Raises:
        UserError: as an actor raised it.
    """
    try:
        return ask()
    except RayError as error:
        # Ray raises an error of a derived type, whose text is a traceback; ``cause`` is the original.
        cause = getattr(error, "cause", None)
        if isinstance(cause, UserError):
            raise UserError(str(cause)) from error
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


_LOG = logging.getLogger(__name__)
