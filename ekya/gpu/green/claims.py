"""Claims of jobs on groups of a GPU's SMs, across all processes of a user, and the choice of free groups.

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
from collections.abc import Sequence
from dataclasses import dataclass
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
    # Not stat: in the shared temporary folder another user may have put a symbolic link here.
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
        # Not for programs that are started: the locks last until every copy of the descriptor is closed.
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def taken(self) -> tuple[bool, ...]:
        """Returns for every group whether another job or guests hold it."""
        # A query for a write lock also finds the shared locks of guests.
        return tuple(self._first_taken(fcntl.F_WRLCK, group, 1) is not None for group in range(self._groups))

    def keep_for_guests(self) -> bool:
        """Releases all claims, and keeps the first group for guests unless a job holds it."""
        self.give_back()
        return self._try(fcntl.F_RDLCK, 0, 1)

    def free_for_guests(self) -> int:
        """Returns the number of unclaimed groups from the first one on."""
        free = self._groups
        while free > 0:
            # A query for a shared lock passes over other guests, and finds only jobs that own groups.
            taken = self._first_taken(fcntl.F_RDLCK, 0, free)
            if taken is None:
                break
            # This need not be the first conflicting lock, so the groups before it are queried again.
            free = taken
        return free

    def claim_groups(self, first: int, groups: int) -> bool:
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
            # POSIX leaves open which of the two errors a refused lock gives.
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True

    def _first_taken(self, kind: int, first: int, groups: int) -> int | None:
        """Returns the start of some conflicting lock, not always the first one; None without one."""
        answer = struct.unpack(_FLOCK, self._lock(fcntl.F_OFD_GETLK, kind, first, groups))
        # A conflicting lock may begin before the range that was queried.
        return None if answer[0] == fcntl.F_UNLCK else max(int(answer[2]), first)

    def _lock(self, command: int, kind: int, first: int, groups: int) -> bytes:
        request = struct.pack(_FLOCK, kind, os.SEEK_SET, first, groups, 0)
        return fcntl.fcntl(self._file, command, request)


@dataclass(frozen=True, slots=True)
class SmSpan:
    """Contiguous groups of one GPU's SMs.

    Attributes:
        first: index of the first group, from 0.
        groups: number of groups.
    """

    first: int
    groups: int


def place_again(taken: Sequence[bool], groups: int, held: SmSpan | None) -> SmSpan | None:
    """Returns a free span for a job, or None where all groups are taken.

    The job stays in place if it can: with its last groups where its gap reaches the GPU's end, since guests
    run from the first group on, otherwise with its first. If it cannot, it takes the smallest gap that is
    large enough, at the end of the GPU if the gap reaches it, so that two jobs do not block each other. If
    no gap is large enough it takes the largest.

    Args:
        taken: for every group whether another job has it; a job's own groups are not taken.
        groups: number of wanted groups, at least 1.
        held: span that the job has now.
    """
    gaps = _gaps(taken)
    if not gaps:
        return None
    if held is not None:
        first, end = next(gap for gap in gaps if gap[0] <= held.first < gap[1])
        if end - first >= groups:
            kept = held.first + held.groups - groups if end == len(taken) else held.first
            return SmSpan(max(first, min(kept, end - groups)), groups)
    enough = [gap for gap in gaps if gap[1] - gap[0] >= groups]
    if enough:
        first, end = min(enough, key=lambda gap: (gap[1] - gap[0], gap))
        at_the_end = end == len(taken) and first > 0
        return SmSpan(end - groups if at_the_end else first, groups)
    first, end = max(gaps, key=lambda gap: (gap[1] - gap[0], -gap[0]))
    if held is not None and end - first <= held.groups:
        return held
    return SmSpan(first, end - first)


def _gaps(taken: Sequence[bool]) -> list[tuple[int, int]]:
    """Returns runs of free groups as (first, index after the last)."""
    gaps: list[tuple[int, int]] = []
    for group, is_taken in enumerate(taken):
        if is_taken:
            continue
        if gaps and gaps[-1][1] == group:
            gaps[-1] = (gaps[-1][0], group + 1)
        else:
            gaps.append((group, group + 1))
    return gaps
