"""Forwards warnings of a run's processes to the user: an actor's own log is only a file of Ray's."""

import logging
import queue
from dataclasses import replace

from ekya.config import FleetConfig
from ekya.core.events import Warned
from ekya.streams.credentials import masked

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
