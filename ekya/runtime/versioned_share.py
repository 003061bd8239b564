"""Applies numbered share orders, which come from many threads, to a job's share handle."""

import sys
import threading
import time
from collections.abc import Hashable
from dataclasses import dataclass, replace

from ekya.gpu.protocol import Resized, ShareHandle

_AGAIN_S = 0.02
"""Interval between two tries of a handle that could not release its share yet."""

_NO_MORE = sys.maxsize
"""Serial number of a part's last order."""


@dataclass(frozen=True, slots=True)
class _Part:
    newest: int
    share_milli: int


class VersionedShare:
    """Share handle that applies orders by serial number: a later order overrides an earlier one.

    Several jobs may use one handle. Each then has a part of it, serial numbers count within a part, and the
    handle holds the sum. A part has released a share when the handle has settled at a sum without it.
    """

    def __init__(self, handle: ShareHandle) -> None:
        self._handle = handle
        self._parts: dict[Hashable, _Part] = {}
        self._holds_milli = 0
        self._turn = threading.Lock()
        self._ended = threading.Event()

    @property
    def holds_milli(self) -> int:
        """Share at which the handle settled last, over all parts."""
        return self._holds_milli

    def resize(self, serial: int, share_milli: int, part: Hashable = None) -> Resized | None:
        """Sets the share of a part; returns when it has settled, at a boundary between two batches.

        Returns None if a newer order for the part, or the end of the jobs, has overtaken this one.
        """
        took_us = 0
        while not self._ended.is_set():
            with self._turn:
                if part in self._parts and serial < self._parts[part].newest:
                    return None
                self._parts[part] = _Part(serial, share_milli)
                whole_milli = sum(one.share_milli for one in self._parts.values())
                resized = self._handle.resize(whole_milli)
            took_us += resized.took_us
            if resized.settled:
                self._holds_milli = resized.share_milli
                holds_milli = _of_part(share_milli, whole_milli, resized.share_milli)
                return replace(resized, share_milli=holds_milli, took_us=took_us)
            self._ended.wait(_AGAIN_S)
        return None

    def leave(self, part: Hashable) -> None:
        """Ends a part; returns when its share is released. Later orders for it do nothing."""
        self.resize(_NO_MORE, 0, part)

    def release(self) -> None:
        """Lets the jobs run without limit from now on, since they are ending."""
        self._ended.set()
        self._handle.release()

    def end(self, over: threading.Event) -> Resized:
        """Lets the job run to its end without limit; returns when ``over`` is set."""
        began_ns = time.monotonic_ns()
        self.release()
        over.wait()
        return Resized(0, (time.monotonic_ns() - began_ns) // 1000)


def _of_part(share_milli: int, whole_milli: int, held_milli: int) -> int:
    """Returns a part's portion of the held share, if the whole was not granted as requested."""
    return share_milli * held_milli // whole_milli if whole_milli else 0
