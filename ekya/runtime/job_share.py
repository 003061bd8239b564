"""Share of a job in its process: numbered share orders from many threads, and the use of the share."""

import sys
import threading
import time
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, replace

from ekya.core.speed import SpeedCurve
from ekya.core.units import US_PER_S
from ekya.gpu.backends.backend import Measured, Resized, ShareHandle

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


class JobUse:
    """Tracks a job's GPU use. Thread-safe.

    Nothing else may call the handle's ``measured``, which counts from one call to the next. Call ``count``
    after each batch: used time is converted at the share that the job holds then.
    """

    def __init__(self, handle: ShareHandle, speed: SpeedCurve, share_milli: int) -> None:
        """Starts at zero.

        Args:
            handle: of the job.
            speed: speed curve of the job over its share.
            share_milli: initial share of the job.
        """
        self._handle = handle
        self._speed = speed
        self._share_milli = share_milli
        self._lock = threading.Lock()
        self._worth_us = 0.0
        self._unreported_us = 0

    def holds(self, resized: Resized | None) -> None:
        """Sets the job's share; None where the order was overtaken.

        Share 0 leaves it unchanged: the batch that a pause has caught up with still counts at its share.
        """
        if resized is not None and resized.share_milli:
            self._share_milli = resized.share_milli

    def count(self) -> None:
        """Counts what was used since the last call, at the current share."""
        with self._lock:
            used_us = self._handle.measured().used_us
            self._worth_us += self._speed.worth(used_us, self._share_milli)
            self._unreported_us += used_us

    def worth_s(self) -> float:
        """Returns the seconds that a whole GPU would have needed for everything so far."""
        self.count()
        with self._lock:
            return self._worth_us / US_PER_S

    def unreported_us(self) -> int:
        """Returns the GPU time used since this was last called."""
        self.count()
        with self._lock:
            unreported_us, self._unreported_us = self._unreported_us, 0
        return unreported_us


class SharedUse:
    """Charges each owner its part of a handle's measured use, in proportion to its analysed pictures.

    A batched call for all streams has only one measured cost. Thread-safe. Nothing else may call the handle's
    ``measured``, which counts from one call to the next.
    """

    def __init__(self, handle: ShareHandle) -> None:
        self._handle = handle
        self._lock = threading.Lock()
        self._looked_at: Counter[Hashable] = Counter()
        self._open_us = 0.0
        self._used_us: dict[Hashable, float] = {}
        self._wall_us = 0
        self._asked_at_us: dict[Hashable, int] = {}

    def enter(self, owner: Hashable) -> None:
        """Adds an owner."""
        with self._lock:
            self._share_out()
            self._used_us[owner], self._asked_at_us[owner] = 0.0, self._wall_us

    def leave(self, owner: Hashable) -> None:
        """Removes an owner."""
        with self._lock:
            self._share_out()
            self._used_us.pop(owner, None)
            self._asked_at_us.pop(owner, None)

    def count(self, owner: Hashable, pictures: int) -> None:
        """Counts pictures that were analysed for an owner."""
        with self._lock:
            if owner in self._used_us:
                self._looked_at[owner] += pictures

    def measured(self, owner: Hashable) -> Measured:
        """Returns the use of an owner since the last call, or since it entered.

        Raises:
            KeyError: the owner has not entered.
        """
        with self._lock:
            self._share_out()
            wall_us = self._wall_us - self._asked_at_us[owner]
            used_us = round(self._used_us[owner])
            self._used_us[owner], self._asked_at_us[owner] = 0.0, self._wall_us
            return Measured(used_us, wall_us)

    def _share_out(self) -> None:
        whole = self._handle.measured()
        self._wall_us += whole.wall_us
        self._open_us += whole.used_us
        pictures = self._looked_at.total()
        if not pictures:
            return
        for owner, count in self._looked_at.items():
            self._used_us[owner] += self._open_us * count / pictures
        self._looked_at.clear()
        self._open_us = 0.0
