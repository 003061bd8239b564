"""Atomic file writes, file errors reported to the user, the lock of a folder, and the user's cache."""

import errno
import fcntl
import os
import shutil
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from ekya.core.errors import FullDiskError, UserError


class _Folder:
    """Type of ``FOLDER``."""


FOLDER = _Folder()
"""Marks a path of a specification as a folder; found in the field's metadata."""

FolderPath = Annotated[Path, FOLDER]
"""A path in a fleet file that names a folder; a plain ``Path`` names a file."""

LOCK = "lock"
"""Name of the file in the folder. It holds the holder's pid, and stays when the lock is free."""

_TRIES, _PAUSE_S = 10, 0.05
"""``holder_of`` holds a lock for an instant, which is no reason to refuse another."""

_REMEDIES = {
    errno.ENOSPC: "the disk is full; free some space or choose another folder",
    errno.EDQUOT: "the disk quota is used up; free some space or choose another folder",
    errno.EFBIG: "larger than is allowed here; raise the limit (ulimit -f), or free some space",
    errno.EIO: "the disk cannot be read or written; check it, or choose another folder",
    errno.EACCES: "no permission; change the folder's permissions or choose another folder",
    errno.EPERM: "no permission; change the folder's permissions or choose another folder",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.ENOENT: "the folder does not exist; create it or choose another",
    errno.EEXIST: "there is a file of this name; choose another folder",
    errno.ENOTDIR: "a part of the path is a file, not a folder; choose another folder",
    errno.EISDIR: "this is a folder, not a file; choose another name",
    errno.ENAMETOOLONG: "the name is too long; choose a shorter one",
    errno.ELOOP: "the link leads back to itself; choose another name",
    errno.EBUSY: "the file is mounted by itself and cannot be replaced; choose a name in a mounted folder",
    errno.ENXIO: "nothing can be written there; choose another name",
    errno.EPIPE: "what reads it has ended; let it read to the end",
}


def cache_folder() -> Path:
    """Returns Ekya's folder in the user's cache: ``$XDG_CACHE_HOME/ekya``, by default ``~/.cache/ekya``."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else expand_home(Path("~/.cache"))) / "ekya"


def expand_home(path: Path) -> Path:
    """Returns the path with the user's home folder in place of ``~``; refuses it where the user has none."""
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise UserError(f"{path}: this user has no home folder; set HOME to one") from error


def require_utf8(name: str) -> None:
    """Refuses a name that is not UTF-8, and could stand in no file of JSON, YAML or Parquet."""
    try:
        name.encode()
    except UnicodeEncodeError:
        told = os.fsencode(name).decode(errors="backslashreplace")
        raise UserError(f"{told}: the name is not UTF-8; rename it, say with convmv") from None


@contextmanager
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


@contextmanager
def atomic_path(path: Path, suffix: str = ".tmp") -> Iterator[Path]:
    """Yields a temporary path in the same folder, which replaces ``path`` when the block ends.

    For libraries that write files themselves. The content is synced to disk before the rename. If the
    block raises, the temporary file is removed and ``path`` stays unchanged. A link stays: the file that it
    names is replaced. What is no regular file is not replaced: the content is written into it.

    Args:
        path: the final path.
        suffix: of the temporary path, for a library that chooses the format by it.

    Raises:
        UserError: full disk, no permission and the like.
    """
    with user_errors(path):
        if is_written_into(path):
            with TemporaryDirectory() as scratch:
                temporary = Path(scratch) / f"content{suffix}"
                yield temporary
                _write_into(path, temporary)
            return
        final = Path(os.path.realpath(path))
        # In the same folder, since a rename works only within a file system; one per writing thread.
        temporary = final.with_name(f".{final.name}.{os.getpid()}-{threading.get_ident()}{suffix}")
        try:
            yield temporary
            # The content first: after a power cut the name could otherwise be that of an empty file.
            sync_to_disk(temporary)
            temporary.replace(final)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        # The rename is an entry of the folder: until that is on disk, a power cut brings the old file back.
        sync_to_disk(final.parent)


def is_written_into(path: Path) -> bool:
    """Returns whether a path is a FIFO, a device, standard output or the like, which no file may replace.

    Raises:
        OSError: the path is a link that leads back to itself and the like.
    """
    try:
        return not stat.S_ISREG(path.stat().st_mode) or standard_descriptor(path) is not None
    except FileNotFoundError:
        return False


def standard_descriptor(path: Path) -> int | None:
    """Returns 1 or 2 if a link, such as ``/dev/stdout``, leads to standard output or error; else None."""
    for descriptor in (1, 2) if path.is_symlink() else ():
        with suppress(OSError):
            if os.path.samestat(path.stat(), os.fstat(descriptor)):
                return descriptor
    return None


def _write_into(path: Path, content: Path) -> None:
    sys.stdout.flush()
    standard = standard_descriptor(path)
    # Not opened by its name where the shell has opened it: a file would be written from its beginning on.
    # Without O_CREAT, with which Linux refuses the FIFOs of others in /tmp.
    descriptor = os.open(path, os.O_WRONLY) if standard is None else os.dup(standard)
    with content.open("rb") as made, os.fdopen(descriptor, "wb") as into:
        shutil.copyfileobj(made, into)


def write_bytes_atomic(path: Path, content: bytes) -> None:
    """Writes a whole file atomically: a reader sees the old content or the new, never a part.

    Raises:
        UserError: full disk, no permission and the like.
    """
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


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


def sync_to_disk(path: Path) -> None:
    """Brings the content of a file, or the entries of a folder, to disk.

    Raises:
        OSError: full or damaged disk and the like.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Holds an existing folder for this process; its children do not hold it.

    Raises:
        UserError: another process holds it, or the lock cannot be written.
    """
    path = folder / LOCK
    with user_errors(path):
        # Not "wb": before it is locked, the file holds the pid of the process that has the lock.
        # Unbuffered: what a full disk refuses below must not be written again, and fail, on close.
        file = path.open("ab", buffering=0)
    with file:
        for last in (*[False] * (_TRIES - 1), True):
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if last:
                raise UserError(
                    f"{folder}: process {_pid_in(path) or 'of another host'} uses this folder; "
                    "stop it, or choose another name"
                )
            time.sleep(_PAUSE_S)
        with suppress(OSError):  # a full disk: the lock holds without the pid
            file.truncate(0)
            file.write(f"{os.getpid()}\n".encode())
        yield


def holder_of(folder: Path) -> int | None:
    """Returns the pid of the process that holds a folder; None if none does, or it cannot be read."""
    path = folder / LOCK
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        # The pid is unknown if the holder has not written it yet, or its disk was full.
        return _pid_in(path) or 0
    except OSError:
        pass
    return None


def _pid_in(path: Path) -> int | None:
    with suppress(OSError, ValueError):
        return int(path.read_text(encoding="utf-8"))
    return None
