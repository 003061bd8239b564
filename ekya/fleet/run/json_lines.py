"""A file of JSON objects, one a line, each of which is on the disk before anyone acts on it."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ekya.core.errors import UserError
from ekya.system.files import user_errors


class JsonLines:
    """Appends objects to a file, from whose end it first removes a line that a crash has cut off.

    Raises:
        UserError: the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with user_errors(path):
            if path.is_file():
                with path.open("r+b") as file:
                    file.truncate(file.read().rfind(b"\n") + 1)
            self._file = path.open("a", encoding="utf-8")

    def write(self, record: Mapping[str, Any]) -> None:
        """Appends an object and syncs it to disk.

        Raises:
            UserError: the disk is full.
        """
        line = json.dumps(record, separators=(",", ":"))
        with user_errors(self._path):
            self._file.write(line + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file for good."""
        self._file.close()


def read_lines(path: Path, take: Callable[[dict[str, Any]], None]) -> None:
    """Passes all objects of a file on, in order; none where the file does not exist.

    Args:
        path: of the file.
        take: raises ValueError, KeyError or TypeError for an object that cannot be right.

    Raises:
        UserError: a line before the last one is damaged; a crash may have cut off the last one.
    """
    if not path.is_file():
        return
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            take(json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines):
                return
            raise UserError(f"{path}: line {number} is damaged ({error})") from error
