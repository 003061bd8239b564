"""A process's GPU as torch sees it: running out of memory, freeing it, the most that was held; losing it."""

import threading
from collections.abc import Callable

import torch

_uses_gpu: Callable[[], bool] = torch.cuda.is_initialized
"""Asking anything else of torch.cuda would begin to use one."""

_REFUSED = ("can't allocate memory", "ALLOC_FAILED", "out of memory")
"""What torch's own errors say that are not of a class of their own: its allocator on the CPU, cuBLAS and
cuDNN, and CUDA below them."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a computation broke for want of memory, on a GPU or on the CPU."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _REFUSED)


def is_gpu_lost(error: BaseException) -> bool:
    """Whether CUDA itself has failed: whatever a process asks of its GPU after that fails as well."""
    return isinstance(error, torch.AcceleratorError) and not is_out_of_memory(error)


def free_cache() -> None:
    """Gives memory that torch keeps for later back to the GPU, where other processes need it."""
    if _uses_gpu():
        torch.cuda.empty_cache()


def begin_peak() -> None:
    """From now on the most that this process holds is counted anew."""
    if _uses_gpu():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_bytes() -> int | None:
    """The most GPU memory that this process held since ``begin_peak``; None where it uses no GPU.

    What torch reserved counts, not only what it used of that: nobody else can have it. What CUDA takes for
    itself is not in it.
    """
    return torch.cuda.max_memory_reserved() if _uses_gpu() else None


class MemoryPeaks:
    """The most GPU memory that each job of this process held. Any thread may call.

    torch counts by process: a job beside which another one ran has no number of its own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[object] = set()
        self._alone: object = None

    def begin(self) -> object:
        """Begins to count for a job, and returns what ``end`` takes."""
        job = object()
        with self._lock:
            if self._running:
                self._alone = None
            else:
                begin_peak()
                self._alone = job
            self._running.add(job)
        return job

    def end(self, job: object) -> int | None:
        """The most that was held while the job ran; None beside another one, or without a GPU."""
        with self._lock:
            self._running.discard(job)
            return peak_bytes() if self._alone is job else None
