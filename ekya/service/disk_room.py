"""Holds the loop of a service while its disk is full, so that its cameras are served meanwhile.

No command may be carried out before the journal has it. A loop that went on would fail at its next step, and
a new process would fail at its start, for as long as the disk is full. Inference needs no disk: its answers
wait in memory.
"""

import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path

_LOG = logging.getLogger(__name__)

RESERVE_BYTES = 64 << 20
"""Room for what one step brings along: weights that begin to serve, the journal, the state of the run."""

_ASK_S = 60.0


class DiskRoom:
    """Whether a disk has room for another step of the loop.

    Args:
        folder: on that disk.
        make_room: called once a minute while the disk is full, since no window ends then.
        free_bytes: returns the free bytes of a folder's disk.
        monotonic_s: clock.
    """

    def __init__(
        self,
        folder: Path,
        make_room: Callable[[], None],
        free_bytes: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._make_room = folder, make_room
        self._free_bytes, self._monotonic_s = free_bytes, monotonic_s
        self._asked_s = float("-inf")
        self._has_room = True

    def __call__(self) -> bool:
        """Returns whether there is room; logs a change. A disk may fill in no time, so each call looks."""
        free_bytes = self._free_bytes(self._folder)
        has_room = free_bytes >= RESERVE_BYTES
        if self._has_room and not has_room:
            _LOG.error(
                "%s: the disk is full (%d MB are free, %d are needed); cameras are served, answers wait "
                "in memory, and nothing is planned or retrained until there is room",
                self._folder,
                free_bytes // 1_000_000,
                RESERVE_BYTES // 1_000_000,
            )
        elif has_room and not self._has_room:
            _LOG.warning("%s: the disk has room again", self._folder)
        self._has_room = has_room
        now_s = self._monotonic_s()
        if not has_room and now_s - self._asked_s >= _ASK_S:
            self._asked_s = now_s
            self._make_room()
        return has_room
