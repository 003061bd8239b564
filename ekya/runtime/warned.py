"""What a process of the run warns of, brought to the user: an actor's own log is a file of Ray's."""

import logging
import queue
from dataclasses import replace

from ekya.config import FleetConfig
from ekya.core.events import Warned
from ekya.streams.credentials import masked

_MOST_TEXTS = 50
"""That one process tells; a text that holds a number is another one each time."""


class WarningMail(logging.Handler):
    """Keeps each warning and each error that is logged in this process until it is asked for, once.

    Args:
        source: name of the process.
    """

    def __init__(self, source: str) -> None:
        super().__init__(logging.WARNING)
        self._source = source
        self._told: set[str] = set()
        self._mail: queue.SimpleQueue[Warned] = queue.SimpleQueue()

    def emit(self, record: logging.LogRecord) -> None:
        """Takes a record, unless its text has been told."""
        try:
            text = _in_a_line(record)
        except Exception:
            self.handleError(record)
            return
        if text not in self._told and len(self._told) < _MOST_TEXTS:
            self._told.add(text)
            self._mail.put(Warned(0, self._source, text))

    def take(self) -> list[Warned]:
        """What has come since this was last asked; when is not known."""
        taken: list[Warned] = []
        while True:
            try:
                taken.append(self._mail.get_nowait())
            except queue.Empty:
                return taken


def as_heard(warned: Warned, now_us: int, fleet: FleetConfig) -> Warned:
    """A warning as it may be written down: with its time, and without what the cameras' variables hold."""
    named = " ".join(stream.source.model_dump_json() for stream in fleet.streams if stream.source.live)
    return replace(warned, t_us=now_us, text=masked(warned.text, named))


def _in_a_line(record: logging.LogRecord) -> str:
    text = " ".join(record.getMessage().split())
    error = record.exc_info[1] if record.exc_info else None
    return text if error is None else f"{text} ({type(error).__name__}: {' '.join(str(error).split())})"
