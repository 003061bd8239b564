"""Streams of the GPU that a process sees, and the GPU time of batches on them, measured by CUDA events."""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from ekya.core.units import FULL_GPU_MILLI

_DEVICE = 0
"""torch's index of the GPU: a job's process sees no other."""


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

    def enter_stream(self, stream: int) -> None:
        """Sends the calling thread's kernels to this stream until it enters another."""

    def current(self) -> int:
        """Returns the address of the calling thread's stream."""

    def wait_for_stream(self, stream: int) -> None:
        """Waits for all work on the stream."""

    def record_mark(self) -> Mark:
        """Records a mark on the calling thread's stream."""


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
                self._began = self._streams.record_mark()
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if self._inside == 0 and self._began is not None:
                    self._under_way.append((self._began, self._streams.record_mark(), share_milli))

    def settle_finished(self) -> int:
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
        # Not under the lock: meanwhile other threads begin and end batches.
        if ended is not None and not ended.reached():
            ended.wait()


class TorchStreams:
    """Torch's streams on the only GPU that this process sees. A ``GpuStreams``.

    Uses ``torch.cuda.ExternalStream``, which is the same in torch 2.11 and 2.15. torch's own green contexts
    (``torch.cuda.green_contexts``) changed in between: 2.15 drops making a context current, in favour of such
    streams. They also come from a separate split of the SMs, which cannot be mixed with ours.

    A stream of a green context runs its kernels on the context's SMs, independent of the current context.
    torch uses the calling thread's current stream for kernels and their memory, passes it to cuBLAS and cuDNN
    with every call, and runs a backward pass on the stream of its forward pass. So all work of a thread after
    ``enter_stream`` runs on that level, also after the batch, since it is never undone.
    """

    def __init__(self) -> None:
        """Starts CUDA in torch."""
        # Imported here: a backend that is only probed must not wait for torch.
        import torch

        self._cuda: Any = torch.cuda  # torch's type hints are incomplete here.
        self._cuda.init()
        self._streams: dict[int, Any] = {}

    def enter_stream(self, stream: int) -> None:
        self._cuda.set_stream(self._stream(stream))

    def current(self) -> int:
        return int(self._cuda.current_stream(_DEVICE).cuda_stream)

    def wait_for_stream(self, stream: int) -> None:
        self._stream(stream).synchronize()

    def record_mark(self) -> Mark:
        event = self._cuda.Event(enable_timing=True)
        event.record(self._cuda.current_stream(_DEVICE))
        return TorchMark(event)

    def _stream(self, address: int) -> Any:
        if address not in self._streams:
            is_default = address == 0  # ExternalStream takes 0 for "no stream" and makes a new one.
            self._streams[address] = (
                self._cuda.default_stream(_DEVICE)
                if is_default
                else self._cuda.ExternalStream(address, device=_DEVICE)
            )
        return self._streams[address]


class TorchMark:
    """Torch's CUDA event with timing. A ``Mark``."""

    def __init__(self, event: Any) -> None:
        self.event = event

    def reached(self) -> bool:
        return bool(self.event.query())

    def wait(self) -> None:
        self.event.synchronize()

    def ns_since(self, earlier: Mark) -> int:
        """Returns GPU time in nanoseconds between two reached marks.

        Raises:
            TypeError: the other mark is not torch's.
        """
        if not isinstance(earlier, TorchMark):
            raise TypeError("two marks of one library are needed")
        return int(earlier.event.elapsed_time(self.event) * 1e6)
