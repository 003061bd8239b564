"""Claims of jobs on groups of a GPU's SMs, across all processes of a user.

A green context does not reserve its SMs: two processes that make one of the same groups share them. So a job
claims its groups first, by locks on the bytes of a small file, one byte per group. The kernel releases the
locks however their owner dies, so there are no stale claims.
"""

import errno
import fcntl
import os
import stat
import struct
import tempfile
from pathlib import Path

from ekya.core.errors import UserError

_FLOCK = "hhqqi4x"
"""C's ``struct flock`` on 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid (0 for these locks)."""


def claims_folder() -> Path:
    """Returns the private folder of this user's claims; makes it where it is missing.

    Raises:
        UserError: the path is not a folder, or another user owns it or has access to it.
    """
    folder = Path(tempfile.gettempdir()) / f"ekya-sms-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise UserError(f"{folder}: it must be a folder that only you may enter; remove it, it is made again")
    return folder


class SmClaims:
    """One job's claims on the groups of one GPU. Not shared between jobs, not even in one process.

    The locks belong to the open file, not to the process, so they also exclude other jobs of the process.
    Guests are jobs without dedicated groups that run on unclaimed ones; together they keep the first group
    by a shared lock.
    """

    def __init__(self, path: Path, groups: int) -> None:
        """Opens the file, creating it where it is missing; claims nothing."""
        self._groups = groups
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def taken(self) -> tuple[bool, ...]:
        """Returns for every group whether another job or guests hold it."""
        return tuple(self._first_taken(fcntl.F_WRLCK, group, 1) is not None for group in range(self._groups))

    def keep_for_guests(self) -> bool:
        """Releases all claims, and keeps the first group for guests unless a job holds it."""
        self.give_back()
        return self._try(fcntl.F_RDLCK, 0, 1)

    def free_for_guests(self) -> int:
        """Returns the number of unclaimed groups from the first one on."""
        free = self._groups
        while free > 0:
            taken = self._first_taken(fcntl.F_RDLCK, 0, free)
            if taken is None:
                break
            free = taken
        return free

    def take(self, first: int, groups: int) -> bool:
        """Claims all of these groups or none; earlier claims of the job stay."""
        return self._try(fcntl.F_WRLCK, first, groups)

    def keep_only(self, first: int, groups: int) -> None:
        """Releases all claims outside these groups."""
        end = first + groups
        if first > 0:
            self._lock(fcntl.F_OFD_SETLK, fcntl.F_UNLCK, 0, first)
        if end < self._groups:
            self._lock(fcntl.F_OFD_SETLK, fcntl.F_UNLCK, end, self._groups - end)

    def give_back(self) -> None:
        """Releases all claims."""
        self._lock(fcntl.F_OFD_SETLK, fcntl.F_UNLCK, 0, self._groups)

    def close(self) -> None:
        """Releases all claims and closes the file. May be called again."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _try(self, kind: int, first: int, groups: int) -> bool:
        try:
            self._lock(fcntl.F_OFD_SETLK, kind, first, groups)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True

    def _first_taken(self, kind: int, first: int, groups: int) -> int | None:
        """Returns the start of some conflicting lock, not always the first one; None without one."""
        answer = struct.unpack(_FLOCK, self._lock(fcntl.F_OFD_GETLK, kind, first, groups))
        return None if answer[0] == fcntl.F_UNLCK else max(int(answer[2]), first)

    def _lock(self, command: int, kind: int, first: int, groups: int) -> bytes:
        request = struct.pack(_FLOCK, kind, os.SEEK_SET, first, groups, 0)
        return fcntl.fcntl(self._file, command, request)
