"""Share backend in which jobs wait between batches: a token bucket on GPU time, measured by CUDA events."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace

from ekya.core.units import FULL_GPU_MILLI
from ekya.gpu.backends.backend import Capability, Measured, Resized, ShareHandle, ShareJob
from ekya.gpu.backends.batch_meter import BatchMeter, RecordMark, start_cuda
from ekya.gpu.backends.token_bucket import Clocks, TokenBucket
from ekya.gpu.mps.control import VISIBLE_VARIABLE
from ekya.gpu.nvml import GpuInventory
from ekya.gpu.torch_build import find_torch

UNDER_WAY = 1
"""Batches that may be queued on the GPU when the next one begins, so that the host can prepare ahead."""


def cpu_only_torch() -> bool:
    """Returns whether the installed torch was built without CUDA; does not import it."""
    return find_torch().cuda is None


@dataclass(frozen=True, slots=True)
class DutyCycleShares:
    """Time-shares a GPU between jobs that limit themselves to their part of its time.

    Attributes:
        inventory: the GPUs.
        start_cuda: starts CUDA in a job's process.
        clocks: clocks of the buckets; tests pass their own.
        without_cuda: returns whether torch cannot use a GPU.
    """

    inventory: GpuInventory
    start_cuda: Callable[[], RecordMark] = start_cuda
    clocks: Clocks | None = None
    without_cuda: Callable[[], bool] = cpu_only_torch

    def probe_machine(self) -> Capability:
        """Reports the backend usable if there is a GPU that torch can use."""
        usable, why = bool(self.inventory.gpus), self.inventory.why
        if usable and self.without_cuda():
            usable, why = (
                False,
                "the installed torch was built without CUDA; install one that was built with it",
            )
        elif usable:
            why += "; every job counts the GPU's time on its batches and waits when it has used its share"
        return Capability(
            usable=usable,
            device="cuda",
            capacity_milli=len(self.inventory.gpus) * FULL_GPU_MILLI if usable else 0,
            step_milli=1,
            why=why,
        )

    def open(self, gpus: int) -> AbstractContextManager["DutyCycleShares"]:
        """Returns this backend; starts nothing."""
        return nullcontext(self)

    def actor_env(self, job: ShareJob) -> Mapping[str, str]:
        """Makes only the job's GPU visible, by its UUID."""
        return {VISIBLE_VARIABLE: self.inventory.gpus[job.gpu].uuid}

    def attach_job(self, job: ShareJob) -> ShareHandle:
        """Returns a token bucket on the time that the GPU works for the job."""
        return DutyCycleHandle(self.start_cuda(), job.share_milli, self.clocks)


class DutyCycleHandle:
    """Handle of one job's part of the GPU's time. A ``ShareHandle``.

    A batch begins when the finished batches leave no debt and at most one batch is still queued or running.
    So a job uses at most share x time plus the bucket's burst plus two batches. The host waits for the GPU
    only where a job is a whole batch ahead. Concurrent jobs make a batch longer, which is charged to its
    job: the job then gets less than its share, never more.

    Args:
        record_mark: records marks in the work of the calling thread.
        share_milli: first share.
        clocks: clocks of the bucket; tests pass their own.
        cap_milli: part of the GPU's multiprocessors that the process can use. Time is charged at this part,
            an upper bound, and no share is above it.
    """

    def __init__(
        self,
        record_mark: RecordMark,
        share_milli: int,
        clocks: Clocks | None = None,
        cap_milli: int = FULL_GPU_MILLI,
    ) -> None:
        self._cap_milli = cap_milli
        self._bucket = TokenBucket(min(share_milli, cap_milli), clocks)
        self._meter = BatchMeter(record_mark)
        self._released = False

    def resize(self, share_milli: int) -> Resized:
        """Sets the share from the next batch on; returns at a batch boundary, as ``TokenBucket.resize`` does.

        Raises:
            ValueError: the share is negative.
        """
        resized = self._bucket.resize(min(share_milli, self._cap_milli))
        if resized.share_milli < share_milli:
            return replace(resized, note="the job cannot have more than its cap, which stays")
        return resized

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Context manager around one batch. Does not nest. At share 0 waits for a resize or release."""
        if not self._released:
            self._meter.wait_until_under_way(UNDER_WAY)
        self._charge_finished()
        self._bucket.wait_for_turn()
        with self._bucket.under_way(), self._meter.batch():
            yield

    def measured(self) -> Measured:
        """Returns the use; a batch counts once the GPU has finished it."""
        self._charge_finished()
        return self._bucket.measured()

    def release(self) -> None:
        """Ends every wait; later batches are counted but not delayed."""
        self._released = True
        self._bucket.release()

    def _charge_finished(self) -> None:
        self._bucket.charge_use(self._meter.settle_finished() * self._cap_milli // FULL_GPU_MILLI)
