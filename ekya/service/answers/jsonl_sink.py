"""Sink that writes lines of JSON, in files that are rotated by size."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from ekya.service.answers.messages import Message
from ekya.service.answers.sink import CameraReport, NotDeliveredError


class JsonlSink:
    """Appends each message as a line; what is on disk is confirmed.

    Args:
        path: the newest file.
        most_bytes: size of a file from which on the next one is begun.
        files: number of files that are kept.
    """

    batch = 500

    def __init__(self, path: Path, most_bytes: int, files: int) -> None:
        self._path, self._most_bytes, self._files = path, most_bytes, files

    def send(self, messages: Sequence[Message]) -> None:
        """Appends the messages."""
        lines = b"".join(f"{json.dumps(message, ensure_ascii=False)}\n".encode() for message in messages)
        try:
            self._rotate()
            with self._path.open("ab+") as file:
                _drop_cut_line(file.fileno())
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise NotDeliveredError(f"{self._path} cannot be written ({error.strerror})") from error

    def report(self, cameras: Sequence[CameraReport]) -> None:
        """Does nothing: states are not written."""

    def close(self) -> None:
        """Does nothing: no file stays open."""

    def _rotate(self) -> None:
        if not self._path.exists() or self._path.stat().st_size < self._most_bytes:
            return
        for number in range(self._files - 1, 0, -1):
            newer = self._numbered(number - 1)
            if newer.exists():
                newer.replace(self._numbered(number))
        self._path.unlink(missing_ok=True)

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}") if number else self._path


def _drop_cut_line(file: int) -> None:
    """Cuts a line without its end, of a write that a crash or a full disk cut off; it is sent again."""
    size = os.fstat(file).st_size
    if not size or os.pread(file, 1, size - 1) == b"\n":
        return
    end = size
    while end:
        begin = max(end - 65536, 0)
        place = os.pread(file, end - begin, begin).rfind(b"\n")
        if place >= 0:
            os.ftruncate(file, begin + place + 1)
            return
        end = begin
    os.ftruncate(file, 0)
