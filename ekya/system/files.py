"""Atomic file writes, and file errors reported to the user."""

import contextlib
import errno
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from ekya.core.errors import FullDiskError, UserError


class _Folder:
    """Type of ``FOLDER``."""


FOLDER = _Folder()
"""Marks a path of a specification as a folder; found in the field's metadata."""

FolderPath = Annotated[Path, FOLDER]
"""A path in a fleet file that names a folder; a plain ``Path`` names a file."""

_REMEDIES = {
    errno.ENOSPC: "the disk is full; free some space or choose another folder",
    errno.EDQUOT: "the disk quota is used up; free some space or choose another folder",
    errno.EFBIG: "the file is larger than is allowed here; free some space or choose another folder",
    errno.EIO: "the disk cannot be read or written; check it, or choose another folder",
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
    """Turns an ``OSError`` that a user can fix (full disk, permission, ...) into a ``UserError``.

    Other errors are raised unchanged. A full disk becomes a ``FullDiskError``.
    """
    try:
        yield
    except OSError as error:
        # Libraries that write files keep the error number, but not always the Python subclass.
        remedy = _REMEDIES.get(error.errno or 0)
        if remedy is None:
            raise
        kind = FullDiskError if error.errno in {errno.ENOSPC, errno.EDQUOT} else UserError
        raise kind(f"{path}: {remedy}") from error


@contextlib.contextmanager
def atomic_path(path: Path, suffix: str = ".tmp") -> Iterator[Path]:
    """Yields a temporary path in the same folder, which replaces ``path`` when the block ends.

    For libraries that write files themselves. The content is synced to disk before the rename. If the
    block raises, the temporary file is removed and ``path`` stays unchanged.

    Args:
        path: the final path.
        suffix: of the temporary path, for a library that chooses the format by it.

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
    """Writes a whole file atomically: a reader sees the old content or the new, never a part.

    Raises:
        UserError: full disk, no permission and the like.
    """
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def link_atomic(path: Path, to: Path) -> None:
    """Makes ``path`` a further name of the file ``to``, or a copy where the file systems differ.

    Neither file may be changed later, only replaced.

    Raises:
        UserError: full disk, no permission and the like.
    """
    with atomic_path(path) as temporary:
        link_or_copy(temporary, to)


def link_or_copy(path: Path, to: Path) -> None:
    """Makes ``path``, which must not exist, a further name of the file ``to``, or a copy without links.

    Raises:
        FileNotFoundError: there is no file ``to``.
    """
    try:
        os.link(to, path)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(to, path)


def write_text_atomic(path: Path, content: str) -> None:
    """Writes UTF-8 text with unchanged line ends; see ``write_bytes_atomic``."""
    write_bytes_atomic(path, content.encode())


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
