"""Streams of the library that runs kernels, and GPU time of batches on them, measured by CUDA events."""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from ekya.core.units import FULL_GPU_MILLI


class Mark(Protocol):
    """Point in a stream's work: a CUDA event."""

    def reached(self) -> bool:
        """Returns whether the GPU has reached the mark, without waiting."""

    def wait(self) -> None:
        """Waits until the GPU has reached the mark."""

    def ns_since(self, earlier: "Mark") -> int:
        """Returns GPU time in nanoseconds between two reached marks."""


class GpuStreams(Protocol):
    """Streams of one GPU, as the calling thread sees them."""

    def enter(self, stream: int) -> None:
        """Sends the calling thread's kernels to this stream until it enters another."""

    def current(self) -> int:
        """Returns the address of the calling thread's stream."""

    def synchronise(self, stream: int) -> None:
        """Waits for all work on the stream."""

    def mark(self) -> Mark:
        """Records a mark on the calling thread's stream."""


def only_gpu() -> GpuStreams:
    """Returns torch's streams on the only GPU that a job's process sees; starts CUDA in torch."""
    from ekya.gpu.backends.torch_streams import TorchStreams

    return TorchStreams(0)


class BatchMeter:
    """Times batches on the GPU. Thread-safe.

    Overlapping batches of several threads count as one, from the first begin to the last end. The time of a
    batch is available once the GPU, not only the host, has finished it.
    """

    def __init__(self, streams: GpuStreams) -> None:
        self._streams = streams
        self._lock = threading.Lock()
        self._inside = 0
        self._began: Mark | None = None
        self._under_way: deque[tuple[Mark, Mark, int]] = deque()

    @contextmanager
    def batch(self, share_milli: int = FULL_GPU_MILLI) -> Iterator[None]:
        """Context manager around one batch, of whose time this part counts."""
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
        """Returns nanoseconds of all batches that the GPU finished since the last call. Does not wait."""
        used = 0
        with self._lock:
            while self._under_way and self._under_way[0][1].reached():
                began, ended, share_milli = self._under_way.popleft()
                used += ended.ns_since(began) * share_milli // FULL_GPU_MILLI
        return used

    def wait_until_under_way(self, most: int) -> None:
        """Waits until at most ``most`` batches are unfinished on the GPU."""
        with self._lock:
            surplus = len(self._under_way) - most
            ended = self._under_way[surplus - 1][1] if surplus > 0 else None
        if ended is not None and not ended.reached():
            ended.wait()
