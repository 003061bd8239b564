"""The streams that a process is answering, in memory that outlives it: its death is charged to them."""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ekya.core.units import StreamId

_LOG = logging.getLogger(__name__)

_MOST_BYTES = 1 << 16


class AnsweringMark:
    """Names the streams that a process is answering.

    The driver makes it, and reads what was written last when the process has died. It is anonymous memory
    that both hold open, so nothing is left behind when either is killed.

    Args:
        path: of the driver's, for the process that writes; a new one without.
    """

    def __init__(self, path: str = "") -> None:
        try:
            self._file = os.open(path, os.O_RDWR) if path else os.memfd_create("ekya-answering")
        except OSError as error:
            _LOG.warning("a death of this process will be charged to all of its streams: %s", error)
            self._file = os.memfd_create("ekya-answering")

    @property
    def path(self) -> str:
        """Path by which another process of this machine opens it."""
        return f"/proc/{os.getpid()}/fd/{self._file}"

    @contextmanager
    def answering(self, streams: Sequence[StreamId]) -> Iterator[None]:
        """Context manager around a call of models for some streams; calls must not overlap."""
        self.write_streams(streams)
        try:
            yield
        finally:
            self.write_streams(())

    def write_streams(self, streams: Sequence[StreamId]) -> None:
        """Writes which streams are being answered."""
        os.pwrite(self._file, "\n".join((*streams, "\0")).encode(), 0)

    def read_streams(self) -> frozenset[StreamId]:
        """Returns the streams that were being answered when this was written last."""
        names, _, _ = os.pread(self._file, _MOST_BYTES, 0).decode(errors="replace").partition("\0")
        return frozenset(StreamId(name) for name in names.split("\n") if name)

    def close(self) -> None:
        """Closes it."""
        os.close(self._file)
