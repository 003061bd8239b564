"""GPU memory of the process, as torch measures it, and errors of exhausted memory or a lost GPU."""

import logging
import os
import signal
import threading
from collections.abc import Callable

import torch

_LOG = logging.getLogger(__name__)

_uses_gpu: Callable[[], bool] = torch.cuda.is_initialized
"""Any other call of torch.cuda would initialise it."""

_REFUSED = ("can't allocate memory", "ALLOC_FAILED", "out of memory")
"""Texts of out-of-memory errors without a separate class: of torch's allocator on the CPU, of cuBLAS and
cuDNN, and of CUDA below them."""


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether a computation failed for lack of memory, on a GPU or on the CPU."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _REFUSED)


def is_gpu_lost(error: BaseException) -> bool:
    """Returns whether CUDA itself has failed, after which every call of the process to its GPU fails."""
    return isinstance(error, torch.AcceleratorError) and not is_out_of_memory(error)


def end_process_if_gpu_is_lost(error: BaseException) -> None:
    """Kills this process, with all that runs in it, if the error says that the GPU is lost."""
    if is_gpu_lost(error):
        _LOG.critical("this process has lost its GPU and ends: %s", error)
        os.kill(os.getpid(), signal.SIGKILL)


def free_cache() -> None:
    """Releases torch's cached GPU memory, which other processes need."""
    if _uses_gpu():
        torch.cuda.empty_cache()


def begin_peak() -> None:
    """Resets the peak of this process's GPU memory."""
    if _uses_gpu():
        # The peak is of reserved memory, so what earlier jobs left in the cache must go first.
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_bytes() -> int | None:
    """Returns the peak GPU memory of this process since ``begin_peak``; None if it uses no GPU.

    Counts what torch reserved, used or not, since other processes cannot have it. Memory that CUDA takes for
    itself is not included.
    """
    return torch.cuda.max_memory_reserved() if _uses_gpu() else None


class MemoryPeaks:
    """Measures the peak GPU memory of each job of this process. Any thread may call.

    torch counts per process, so a job has no peak if another one ran beside it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[object] = set()
        self._alone: object = None

    def start_job(self) -> object:
        """Begins to measure a job and returns a token for ``end_job``."""
        job = object()
        with self._lock:
            if self._running:
                self._alone = None
            else:
                begin_peak()
                self._alone = job
            self._running.add(job)
        return job

    def end_job(self, job: object) -> int | None:
        """Returns the job's peak in bytes; None if another job ran beside it, or without a GPU."""
        with self._lock:
            self._running.discard(job)
            return peak_bytes() if self._alone is job else None
