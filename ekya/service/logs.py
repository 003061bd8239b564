"""Log of a service: a JSON object a line, in files of limited size and number; and what it says elsewhere."""

import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path

from ekya.core.errors import UserError
from ekya.streams.ingest.credentials import mask_passwords
from ekya.system.files import user_errors

FILE_BYTES = 10_000_000
"""A log file that would become larger is closed, and another is begun."""

OLDER_FILES = 5
"""Number of closed log files that are kept: ``service.jsonl.1`` is the newest of them."""


_LOG = logging.getLogger(__name__)


def log_file(folder: Path) -> Path:
    """Returns the path of a service's log."""
    return folder / "logs" / "service.jsonl"


@contextmanager
def logging_to_folder(
    folder: Path, cameras: Callable[[], Collection[str]], named: Callable[[], str]
) -> Iterator[None]:
    """Writes all that is logged in the block to the log of a service, beside what is done with it elsewhere.

    Args:
        folder: of the service.
        cameras: returns the ids of its cameras; a line that names one in its arguments is of that camera.
        named: returns texts, such as URLs, that name the environment variables with its secrets, whose values
            are hidden.

    Raises:
        UserError: full disk, no permission and the like.
    """
    path = log_file(folder)
    with user_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = _LogFile(path, maxBytes=FILE_BYTES, backupCount=OLDER_FILES, encoding="utf-8")
    handler.setFormatter(JsonFormatter(cameras, named))
    root = logging.getLogger()
    # Before the handler is added, which must not be wrapped: it masks by itself, before texts become JSON.
    with secrets_hidden(named):
        root.addHandler(handler)
        try:
            yield
        finally:
            root.removeHandler(handler)
            with suppress(OSError):  # a full disk, which has not taken the last lines
                handler.close()


@contextmanager
def secrets_hidden(named: Callable[[], str]) -> Iterator[None]:
    """Hides secrets in what is said on standard error in the block, also when it ends with an error.

    Errors that no code has caught, in any thread, are logged: Python would print their texts as they are.

    Args:
        named: see ``logging_to_folder``.

    Raises:
        UserError: as the block raised it, without secrets.
        SystemExit: the block raised another error.
    """
    before = [(handler, handler.formatter) for handler in logging.getLogger().handlers]
    for handler, formatter in before:
        handler.setFormatter(MaskingFormatter(formatter or logging.Formatter(), named))
    hook_before, threading.excepthook = threading.excepthook, _log_thread
    # logging would print the arguments of a record that it cannot write, as they are.
    raises_before, logging.raiseExceptions = logging.raiseExceptions, False
    try:
        yield
    except UserError as error:
        # from None: the first error, with its secrets, would be printed as the cause.
        raise type(error)(mask_passwords(str(error), named())) from None
    except Exception:
        _LOG.exception("the service failed")
        raise SystemExit(1) from None
    finally:
        threading.excepthook = hook_before
        logging.raiseExceptions = raises_before
        for handler, formatter in before:
            handler.setFormatter(formatter)


def _log_thread(thread: threading.ExceptHookArgs) -> None:
    name = "" if thread.thread is None else thread.thread.name
    error = thread.exc_value or thread.exc_type()
    _LOG.error("thread %s failed", name, exc_info=error)


class _LogFile(RotatingFileHandler):
    """Drops lines that cannot be written, on a full disk for example; the first time it says so elsewhere."""

    _has_failed = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - as logging has it
        if not self._has_failed:
            # Set first: the warning comes back to this handler, and may fail as well.
            self._has_failed = True
            _LOG.warning("%s: lines are lost (%s)", self.baseFilename, sys.exception())


class MaskingFormatter(logging.Formatter):
    """Formats a record as another formatter does, and masks passwords.

    Args:
        inner: the other formatter.
        named: see ``logging_to_folder``.
    """

    def __init__(self, inner: logging.Formatter, named: Callable[[], str]) -> None:
        super().__init__()
        self._inner, self._named = inner, named

    def format(self, record: logging.LogRecord) -> str:
        """Returns the text; passwords are masked."""
        return mask_passwords(self._inner.format(record), self._named())


class JsonFormatter(logging.Formatter):
    """Formats a record as JSON: time (ISO 8601, UTC), level, logger, message, camera and traceback if known.

    Args:
        cameras, named: see ``logging_to_folder``.
    """

    def __init__(self, cameras: Callable[[], Collection[str]], named: Callable[[], str]) -> None:
        super().__init__()
        self._cameras, self._named = cameras, named

    def format(self, record: logging.LogRecord) -> str:
        """Returns one line without its end; passwords are masked."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (camera := self._camera_of(record)) is not None:
            line["camera"] = camera
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        named = self._named()
        # Before JSON escapes them: a secret with a quote in it would not be found any more.
        hidden = {
            key: mask_passwords(text, named) for key, text in line.items() if key in ("message", "traceback")
        }
        return json.dumps({**line, **hidden}, ensure_ascii=False)

    def _camera_of(self, record: logging.LogRecord) -> str | None:
        """Returns the first camera among a record's arguments."""
        arguments = record.args if isinstance(record.args, tuple) else ()
        cameras = self._cameras()
        return next((one for one in arguments if isinstance(one, str) and one in cameras), None)
