"""The private folder of one MPS daemon: where it is, who holds it, and what a dead owner left behind."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ekya.gpu.mps_control import MAX_SOCKET_BYTES, PID_FILE, is_too_long

_PREFIX = "ekya-mps-"
_ANY_NAME = "x" * 8
"""As long as what ``tempfile`` puts behind a prefix."""


@dataclass(frozen=True, slots=True)
class DaemonFolder:
    """One daemon's folder.

    Attributes:
        root: private to the current user.
    """

    root: Path

    @property
    def pipe(self) -> Path:
        """Where clients find the daemon."""
        return self.root / "pipe"

    @property
    def log(self) -> Path:
        """Where daemon and servers write their logs."""
        return self.root / "log"

    @property
    def record(self) -> Path:
        """Which process the daemon is, written by whoever started it."""
        return self.root / "daemon.json"

    @property
    def pid_file(self) -> Path:
        """Written by the daemon."""
        return self.pipe / PID_FILE

    def pid(self) -> int | None:
        """What the pid file says; None without one, or where it says something else than a number."""
        try:
            text = self.pid_file.read_text(errors="replace").strip()
        except OSError:
            return None
        return int(text) if text.isascii() and text.isdigit() else None

    def clear(self) -> None:
        """Removes what a dead daemon has left, but for its logs; the folder can be another's."""
        shutil.rmtree(self.pipe, ignore_errors=True)
        self.record.unlink(missing_ok=True)
        self.pipe.mkdir(mode=0o700, exist_ok=True)

    def remove(self) -> None:
        """Removes all of it; what cannot be removed stays."""
        shutil.rmtree(self.root, ignore_errors=True)


def temporary_folders() -> tuple[Path, ...]:
    """Where folders of daemons may be made: where temporary files go, or in /tmp if that is too long."""
    return tuple(dict.fromkeys((Path(tempfile.gettempdir()), Path("/tmp"))))


def short_enough(bases: tuple[Path, ...]) -> Path | None:
    """The first of these in which a daemon can be reached."""
    fitting = (base for base in bases if not is_too_long(DaemonFolder(base / (_PREFIX + _ANY_NAME)).pipe))
    return next((base for base in fitting if os.access(base, os.W_OK | os.X_OK)), None)


def why_none(bases: tuple[Path, ...]) -> str:
    """What to say where none is short enough."""
    named = " or ".join(str(base) for base in bases)
    return (
        f"an MPS daemon cannot have its folder in {named}: it cannot be written, or its path would be longer "
        f"than the {MAX_SOCKET_BYTES} bytes of a socket; set TMPDIR to a shorter folder"
    )


@contextmanager
def new_folder(base: Path) -> Iterator[DaemonFolder]:
    """A new folder, held until the end of the block, which does not remove it.

    Raises:
        OSError: it cannot be made.
    """
    while True:
        folder = DaemonFolder(Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base)))
        with held(folder) as still_there:
            # Somebody who tidies up can have come before us, and it is gone.
            if not still_there:
                continue
            folder.pipe.mkdir(mode=0o700)
            folder.log.mkdir(mode=0o700)
            yield folder
            return


@contextmanager
def held(folder: DaemonFolder) -> Iterator[bool]:
    """Marks a folder as in use; as many processes as want may, and the kernel forgets those that die.

    Yields whether the folder is still there.
    """
    try:
        door = _open(folder.root)
    except OSError:
        yield False
        return
    try:
        fcntl.flock(door, fcntl.LOCK_SH)
        yield folder.root.exists()
    finally:
        os.close(door)


@contextmanager
def abandoned(base: Path) -> Iterator[list[DaemonFolder]]:
    """Folders of the current user that nobody holds any more, and that nobody can hold meanwhile."""
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
                fcntl.flock(door, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            found.append(DaemonFolder(path))
        yield found
    finally:
        for door in doors:
            os.close(door)


def _open(path: Path) -> int:
    """Not through a link, which could lead anywhere."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
