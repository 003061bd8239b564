"""Files that are there in full or not at all."""

import contextlib
import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from ekya.errors import UserError


class _Folder:
    """Marks a path that is a folder's."""


FOLDER = _Folder()
"""The mark, where a specification's fields are looked through."""

FolderPath = Annotated[Path, FOLDER]
"""A path in a fleet file that names a folder; every other one there names a file."""

_REMEDIES = {
    errno.ENOSPC: "the disk is full; free some space or choose another folder",
    errno.EDQUOT: "the disk quota is used up; free some space or choose another folder",
    errno.EACCES: "no permission; change the folder's permissions or choose another folder",
    errno.EPERM: "no permission; change the folder's permissions or choose another folder",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.ENOENT: "the folder does not exist; create it or choose another",
    errno.EEXIST: "there is a file of this name; choose another folder",
    errno.ENOTDIR: "a part of the path is a file, not a folder; choose another folder",
    errno.EISDIR: "this is a folder, not a file; choose another name",
    errno.ENAMETOOLONG: "the name is too long; choose a shorter one",
}


@contextlib.contextmanager
def user_errors(path: Path) -> Iterator[None]:
    """Turns what a user can do something about (full disk, permission, ...) into a ``UserError``.

    Every other ``OSError`` passes through.
    """
    try:
        yield
    except OSError as error:
        # Libraries that write files themselves keep the number, but not always the Python subclass.
        remedy = _REMEDIES.get(error.errno or 0)
        if remedy is None:
            raise
        raise UserError(f"{path}: {remedy}") from error


@contextlib.contextmanager
def atomic_path(path: Path, suffix: str = ".tmp") -> Iterator[Path]:
    """A path in the same folder to write to; it takes the place of ``path`` when the block ends.

    For libraries that write files themselves. The content is on disk before the rename. When the
    block raises, the temporary file is removed and ``path`` stays what it was.

    Args:
        path: where the file will be.
        suffix: of the path to write to, for a library that goes by it.

    Raises:
        UserError: full disk, no permission and the like.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}{suffix}")
    with user_errors(path):
        try:
            yield temporary
            _sync(temporary)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync(path.parent)


def write_bytes_atomic(path: Path, content: bytes) -> None:
    """Writes a whole file; a reader sees the old content or the new, never a part.

    Raises:
        UserError: full disk, no permission and the like.
    """
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def write_text_atomic(path: Path, content: str) -> None:
    """As ``write_bytes_atomic``, in UTF-8 with the line ends as they are."""
    write_bytes_atomic(path, content.encode())


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
