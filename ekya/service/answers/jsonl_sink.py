"""Sink that writes lines of JSON, in files that are rotated by size."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from ekya.core.errors import UserError
from ekya.service.answers.messages import CameraReport, Message, NotDeliveredError
from ekya.system.json_lines import JsonLines


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

    def send_messages(self, messages: Sequence[Message]) -> None:
        """Appends the messages."""
        try:
            self._rotate()
            # A line that a crash or a full disk cut off goes: its message is sent again.
            with closing(JsonLines(self._path, ascii_only=False)) as lines:
                lines.append_records(*messages)
        except (UserError, OSError) as error:
            raise NotDeliveredError(str(error)) from error

    def report_cameras(self, cameras: Sequence[CameraReport]) -> None:
        """Does nothing: states are not written."""

    def close(self) -> None:
        """Does nothing: no file stays open."""

    def _rotate(self) -> None:
        if not self._path.exists() or self._path.stat().st_size < self._most_bytes:
            return
        # From the oldest on: a kill between two renames leaves a gap, and overwrites nothing newer.
        for number in range(self._files - 1, 0, -1):
            newer = self._numbered(number - 1)
            if newer.exists():
                newer.replace(self._numbered(number))
        # Does something only where a single file is kept, which has no older name to go to.
        self._path.unlink(missing_ok=True)

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}") if number else self._path
