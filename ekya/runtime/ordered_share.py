"""A job's handle, in its process, as whoever gives shares out reaches it: orders come from many threads."""

import threading
import time
from dataclasses import replace

from ekya.gpu.protocol import Resized, ShareHandle

_AGAIN_S = 0.02
"""Between two tries of a handle that could not let go yet."""


class OrderedShare:
    """A handle that takes orders by their number: of two, only the one with the higher number counts."""

    def __init__(self, handle: ShareHandle) -> None:
        self._handle = handle
        self._newest = 0
        self._turn = threading.Lock()
        self._ended = threading.Event()

    def resize(self, serial: int, share_milli: int) -> Resized | None:
        """Goes to a share, and returns when that is settled, at a boundary between two batches.

        None where that was overtaken: by a newer order, or by the end of the job.
        """
        took_us = 0
        while not self._ended.is_set():
            with self._turn:
                if serial < self._newest:
                    return None
                self._newest = serial
                resized = self._handle.resize(share_milli)
            took_us += resized.took_us
            if resized.settled:
                return replace(resized, took_us=took_us)
            self._ended.wait(_AGAIN_S)
        return None

    def release(self) -> None:
        """The job is ending, and nothing holds it back any more."""
        self._ended.set()
        self._handle.release()

    def end(self, over: threading.Event) -> Resized:
        """Lets the job run to its end unhindered, and returns when ``over`` says that it has."""
        began_ns = time.monotonic_ns()
        self.release()
        over.wait()
        return Resized(0, (time.monotonic_ns() - began_ns) // 1000)
