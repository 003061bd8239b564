"""How long the GPU worked on a job's batches, by CUDA events around each; the host does not wait for it."""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from ekya.core.units import FULL_GPU_MILLI
from ekya.gpu.gpu_streams import GpuStreams, Mark


class BatchMeter:
    """Times batches on the GPU. Every method may be called by any thread.

    Batches of several threads that overlap count as one, from the first one's begin to the last one's end.
    What a batch took is known when the GPU has done it, later than the host has.
    """

    def __init__(self, streams: GpuStreams) -> None:
        self._streams = streams
        self._lock = threading.Lock()
        self._inside = 0
        self._began: Mark | None = None
        self._under_way: deque[tuple[Mark, Mark, int]] = deque()

    @contextmanager
    def batch(self, share_milli: int = FULL_GPU_MILLI) -> Iterator[None]:
        """Around one batch, which counts as this part of its time."""
        with self._lock:
            if self._inside == 0:
                self._began = self._streams.mark()
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if self._inside == 0 and self._began is not None:
                    self._under_way.append((self._began, self._streams.mark(), share_milli))

    def settle(self) -> int:
        """Nanoseconds of all batches that the GPU has done since the last call. Does not wait."""
        used = 0
        with self._lock:
            while self._under_way and self._under_way[0][1].reached():
                began, ended, share_milli = self._under_way.popleft()
                used += ended.ns_since(began) * share_milli // FULL_GPU_MILLI
        return used

    def wait_until_under_way(self, most: int) -> None:
        """Returns when the GPU has at most so many batches still to do."""
        with self._lock:
            surplus = len(self._under_way) - most
            ended = self._under_way[surplus - 1][1] if surplus > 0 else None
        if ended is not None and not ended.reached():
            ended.wait()
