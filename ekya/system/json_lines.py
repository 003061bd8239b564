"""Files of JSON objects, one a line, to which objects are only appended.

An object is on the disk before anyone acts on it. So a line that a crash has cut off, the last one, is that
of an object without effect yet: it is left out when the file is read, and removed before more is appended.
"""

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ekya.core.errors import UserError
from ekya.system.files import user_errors

_BLOCK_BYTES = 65536


class JsonLines:
    """Appends objects to a file, from whose end it first removes a line that was cut off.

    Args:
        path: of the file, which need not exist.
        ascii_only: escapes all other characters, so that any text can be written; else they can be read.

    Raises:
        UserError: the file cannot be written.
    """

    def __init__(self, path: Path, ascii_only: bool = True) -> None:
        self._path, self._ascii_only = path, ascii_only
        with user_errors(path):
            # Unbuffered: data that a full disk refused must not be written again on close.
            self._file = path.open("ab+", buffering=0)
            _drop_cut_line(self._file.fileno())

    @property
    def size_bytes(self) -> int:
        """Size of the file."""
        return os.fstat(self._file.fileno()).st_size

    def append_records(self, *records: Mapping[str, Any], durable: bool = True) -> None:
        """Appends objects, all or none of them.

        Args:
            records: the objects.
            durable: syncs them, and all before them, to disk; else only the operating system has them.

        Raises:
            UserError: the disk is full or damaged.
        """
        lines = "".join(self._line(record) for record in records).encode()
        before = self.size_bytes
        with user_errors(self._path):
            try:
                left = memoryview(lines)
                # An unbuffered write may take a part, as of the last line for which a disk has room.
                while left:
                    left = left[self._file.write(left) :]
                if durable:
                    os.fsync(self._file.fileno())
            except OSError:
                # The caller may go on, and the next object must not be glued to a part of this one.
                with suppress(OSError):
                    os.ftruncate(self._file.fileno(), before)
                raise

    def sync_file(self) -> None:
        """Brings everything to disk.

        Raises:
            UserError: the disk is full or damaged.
        """
        with user_errors(self._path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file for good."""
        self._file.close()

    def _line(self, record: Mapping[str, Any]) -> str:
        return json.dumps(record, separators=(",", ":"), ensure_ascii=self._ascii_only) + "\n"


def read_json_lines(path: Path, take: Callable[[dict[str, Any]], None], from_byte: int = 0) -> None:
    """Passes all objects of a file on, in order.

    Args:
        path: of the file.
        take: raises ValueError, KeyError or TypeError for an object that cannot be right.
        from_byte: where the first line begins that is read.

    Raises:
        UserError: a line is damaged. A last one without its line break, cut off by a crash, is passed over.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        file.seek(from_byte)
        # Lines of bytes end at b"\n" alone; str.splitlines also splits at U+2028, which JSON leaves.
        lines = list(file)
    for number, line in enumerate(lines):
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise ValueError("it is not an object")
            take(record)
        except (ValueError, KeyError, TypeError) as error:
            # A whole line is not a crash's: passed over here, it would stand before what is written next.
            if not line.endswith(b"\n"):
                return
            before = path.read_bytes()[:from_byte].count(b"\n")
            raise UserError(f"{path}: line {before + number + 1} is damaged ({error})") from error


def _drop_cut_line(file: int) -> None:
    """Truncates a file to its last line break; only blocks at its end are read."""
    end = os.fstat(file).st_size
    if not end or os.pread(file, 1, end - 1) == b"\n":
        return
    while end:
        begin = max(end - _BLOCK_BYTES, 0)
        place = os.pread(file, end - begin, begin).rfind(b"\n")
        if place >= 0:
            os.ftruncate(file, begin + place + 1)
            return
        end = begin
    os.ftruncate(file, 0)
