"""Private folder of one MPS daemon: its place, the lock that marks it in use, and abandoned folders."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ekya.core.errors import UserError
from ekya.gpu.mps.control import MAX_SOCKET_BYTES, is_too_long

_PREFIX = "ekya-mps-"
_ANY_NAME = "x" * 8
"""Has the length of the suffix that ``tempfile`` appends to a prefix."""


@dataclass(frozen=True, slots=True)
class DaemonFolder:
    """One daemon's folder.

    Attributes:
        root: private to the current user.
    """

    root: Path

    @property
    def pipe(self) -> Path:
        """Folder of the sockets on which clients reach the daemon."""
        return self.root / "pipe"

    @property
    def log(self) -> Path:
        """Folder of the daemon's and servers' logs."""
        return self.root / "log"

    def clear_remains(self) -> None:
        """Removes all that a dead daemon left except its logs, so that another daemon can use the folder."""
        shutil.rmtree(self.pipe, ignore_errors=True)
        self.pipe.mkdir(mode=0o700, exist_ok=True)

    def remove_folder(self) -> None:
        """Removes the folder, ignoring errors."""
        shutil.rmtree(self.root, ignore_errors=True)


def temporary_folders() -> tuple[Path, ...]:
    """Returns the parents to try for daemon folders: the temporary folder, then /tmp if that is too long."""
    return tuple(dict.fromkeys((Path(tempfile.gettempdir()), Path("/tmp"))))


def choose_base(bases: tuple[Path, ...]) -> Path:
    """Returns the first writable base whose socket paths are short enough.

    Raises:
        UserError: no base is usable.
    """
    for base in bases:
        pipe = DaemonFolder(base / (_PREFIX + _ANY_NAME)).pipe
        if not is_too_long(pipe) and os.access(base, os.W_OK | os.X_OK):
            return base
    named = " or ".join(str(base) for base in bases)
    raise UserError(
        f"an MPS daemon cannot have its folder in {named}: it cannot be written, or its path would be longer "
        f"than the {MAX_SOCKET_BYTES} bytes of a socket; set TMPDIR to a shorter folder"
    )


@contextmanager
def new_folder(base: Path) -> Iterator[DaemonFolder]:
    """Makes a folder and holds its lock until the end of the block; does not remove it.

    Raises:
        OSError: the folder cannot be made.
    """
    while True:
        folder = DaemonFolder(Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base)))
        with held(folder) as still_there:
            # Another process's clean-up may have removed the folder before it was locked.
            if not still_there:
                continue
            folder.pipe.mkdir(mode=0o700)
            folder.log.mkdir(mode=0o700)
            yield folder
            return


@contextmanager
def held(folder: DaemonFolder) -> Iterator[bool]:
    """Marks a folder as in use by a shared lock, which the kernel releases if the process dies.

    Yields whether the folder still exists.
    """
    try:
        door = _open(folder.root)
    except OSError:
        yield False
        return
    try:
        # Waits for a process that is tidying up, which holds an exclusive lock and may remove the folder.
        fcntl.flock(door, fcntl.LOCK_SH)
        yield folder.root.exists()
    finally:
        os.close(door)


@contextmanager
def abandoned(base: Path) -> Iterator[list[DaemonFolder]]:
    """Yields folders of the current user that no process holds, locked against use meanwhile."""
    doors: list[int] = []
    found: list[DaemonFolder] = []
    try:
        for path in sorted(base.glob(f"{_PREFIX}*")):
            try:
                if path.lstat().st_uid != os.getuid():
                    continue
                door = _open(path)
            except OSError:
                continue
            doors.append(door)
            try:
                # A refusal means that its owner or keeper is alive, or that another process tidies it up.
                fcntl.flock(door, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            found.append(DaemonFolder(path))
        yield found
    finally:
        for door in doors:
            os.close(door)


def _open(path: Path) -> int:
    """Opens a folder, but no symbolic link, which could lead anywhere."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
