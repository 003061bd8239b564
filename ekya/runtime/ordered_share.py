"""A job's handle, in its process, as whoever gives shares out reaches it: orders come from many threads."""

import sys
import threading
import time
from collections.abc import Hashable
from dataclasses import dataclass, replace

from ekya.gpu.protocol import Resized, ShareHandle

_AGAIN_S = 0.02
"""Between two tries of a handle that could not let go yet."""

_NO_MORE = sys.maxsize
"""Number of an order that none comes after."""


@dataclass(frozen=True, slots=True)
class _Part:
    newest: int
    share_milli: int


class OrderedShare:
    """A handle that takes orders by their number: of two, only the one with the higher number counts.

    Several jobs may have one handle. Each has a part of it then, numbers count within a part, and the handle
    holds their sum. A part has let go of something when the handle has settled at a sum without that.
    """

    def __init__(self, handle: ShareHandle) -> None:
        self._handle = handle
        self._parts: dict[Hashable, _Part] = {}
        self._holds_milli = 0
        self._turn = threading.Lock()
        self._ended = threading.Event()

    @property
    def holds_milli(self) -> int:
        """At which the handle settled last, all parts together."""
        return self._holds_milli

    def resize(self, serial: int, share_milli: int, part: Hashable = None) -> Resized | None:
        """Brings a part to a share, and returns when that is settled, at a boundary between two batches.

        None where that was overtaken: by a newer order for the part, or by its end.
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
        """A part ends; returns when it has let go. Orders for it that come later do nothing."""
        self.resize(_NO_MORE, 0, part)

    def release(self) -> None:
        """The jobs are ending, and nothing holds them back any more."""
        self._ended.set()
        self._handle.release()

    def end(self, over: threading.Event) -> Resized:
        """Lets the job run to its end unhindered, and returns when ``over`` says that it has."""
        began_ns = time.monotonic_ns()
        self.release()
        over.wait()
        return Resized(0, (time.monotonic_ns() - began_ns) // 1000)


def _of_part(share_milli: int, whole_milli: int, held_milli: int) -> int:
    """A part of what is held, where that is not what was asked for the whole."""
    return share_milli * held_milli // whole_milli if whole_milli else 0
