"""GPU time of batches, measured by CUDA events."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

_DEVICE = 0
"""torch's index of the GPU: a job's process sees no other."""

_NS_PER_MS = 1e6


class Mark(Protocol):
    """Point in the GPU's work: a CUDA event with timing, as torch has it."""

    def query(self) -> bool:
        """Returns whether the GPU has reached the mark, without waiting."""

    def synchronize(self) -> None:
        """Waits until the GPU has reached the mark."""

    def elapsed_time(self, later: Any) -> float:
        """Returns GPU time in milliseconds until another mark; both have been reached."""


RecordMark = Callable[[], Mark]
"""Records a mark in the work of the calling thread."""


def start_cuda() -> RecordMark:
    """Starts CUDA in torch; the marks are on the calling thread's stream."""
    # Imported here: a backend that is only probed must not wait for torch.
    import torch

    cuda: Any = torch.cuda  # torch's type hints are incomplete here.
    cuda.init()

    def record_mark() -> Any:
        event = cuda.Event(enable_timing=True)
        event.record(cuda.current_stream(_DEVICE))
        return event

    return record_mark


@dataclass(slots=True, eq=False)
class _Batch:
    """Marks of one batch; ``ended`` is None while its thread is inside."""

    began: Mark
    ended: Mark | None = None


class BatchMeter:
    """Times the batches of one job on the GPU. Thread-safe.

    Batches of several threads may overlap. Each counts from its own begin to its own end, as soon as the GPU,
    not only the host, has finished it; time that several of them cover counts once.
    """

    def __init__(self, record_mark: RecordMark) -> None:
        self._record_mark = record_mark
        self._lock = threading.Lock()
        self._inside: list[_Batch] = []
        # In the order in which they ended.
        self._under_way: list[_Batch] = []
        # Counted time that batches in one of the lists may overlap, in nanoseconds since the origin.
        self._origin: Mark | None = None
        self._counted: list[tuple[int, int]] = []

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Context manager around one batch."""
        with self._lock:
            batch = _Batch(self._record_mark())
            self._inside.append(batch)
        try:
            yield
        finally:
            with self._lock:
                batch.ended = self._record_mark()
                self._inside.remove(batch)
                self._under_way.append(batch)

    def settle_finished(self) -> int:
        """Returns nanoseconds of all batches that the GPU finished since the last call. Does not wait."""
        used_ns = 0
        with self._lock:
            for batch in tuple(self._under_way):
                if batch.ended is None or not batch.ended.query():
                    continue
                self._under_way.remove(batch)
                self._origin = self._origin or batch.began
                before_ns = _covered_ns(self._counted)
                span = (_ns_until(self._origin, batch.began), _ns_until(self._origin, batch.ended))
                self._counted = _joined([*self._counted, span])
                used_ns += _covered_ns(self._counted) - before_ns
            self._forget_past()
        return used_ns

    def wait_until_under_way(self, most: int) -> None:
        """Waits until at most ``most`` batches that have ended on the host are unfinished on the GPU."""
        with self._lock:
            surplus = len(self._under_way) - most
            ended = self._under_way[surplus - 1].ended if surplus > 0 else None
        # Not under the lock: meanwhile other threads begin and end batches.
        if ended is not None and not ended.query():
            ended.synchronize()

    def _forget_past(self) -> None:
        """Moves the origin to the oldest batch that is not counted, since events tell long times coarsely.

        A batch whose begin the GPU has not reached overlaps with nothing that is counted.
        """
        origin = self._origin
        if origin is None:
            return
        began = [batch.began for batch in (*self._inside, *self._under_way) if batch.began.query()]
        self._origin = min(began, key=lambda mark: _ns_until(origin, mark), default=None)
        past_ns = 0 if self._origin is None else _ns_until(origin, self._origin)
        self._counted = [
            (max(first - past_ns, 0), end - past_ns)
            for first, end in self._counted
            if self._origin is not None and end > past_ns
        ]


def _ns_until(origin: Mark, mark: Mark) -> int:
    return round(origin.elapsed_time(mark) * _NS_PER_MS)


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns the same time as spans that do not overlap, in order."""
    joined: list[tuple[int, int]] = []
    for first, end in sorted(spans):
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((first, end))
    return joined


def _covered_ns(spans: list[tuple[int, int]]) -> int:
    return sum(end - first for first, end in spans)
