"""Share backend in which jobs wait between batches: a token bucket on GPU time, measured by CUDA events."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from ekya.core.units import FULL_GPU_MILLI
from ekya.gpu.backends.backend import Capability, Measured, Resized, ShareHandle, ShareJob
from ekya.gpu.backends.gpu_streams import BatchMeter, GpuStreams, TorchStreams
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
        streams: starts CUDA in a job's process.
        clocks: clocks of the buckets; tests pass their own.
        without_cuda: returns whether torch cannot use a GPU.
    """

    inventory: GpuInventory
    streams: Callable[[], GpuStreams] = TorchStreams
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
            enforcement="cooperative",
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
        return DutyCycleHandle(self.streams(), job.share_milli, self.clocks)


class DutyCycleHandle:
    """Handle of one job's part of the GPU's time. A ``ShareHandle``.

    A batch begins when the finished batches leave no debt and at most one batch is still queued or running.
    So a job uses at most share x time plus the bucket's burst plus two batches. The host waits for the GPU
    only where a job is a whole batch ahead. Concurrent jobs make a batch longer, which is charged to its
    job: the job then gets less than its share, never more.
    """

    def __init__(self, streams: GpuStreams, share_milli: int, clocks: Clocks | None = None) -> None:
        self._bucket = TokenBucket(share_milli, clocks)
        self._meter = BatchMeter(streams)

    def resize(self, share_milli: int) -> Resized:
        """Sets the share from the next batch on; returns at a batch boundary, as ``TokenBucket.resize`` does.

        Raises:
            ValueError: the share is negative.
        """
        return self._bucket.resize(share_milli)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Context manager around one batch. Does not nest. At share 0 waits for a resize or release."""
        self._meter.wait_until_under_way(UNDER_WAY)
        self._bucket.charge_use(self._meter.settle_finished())
        self._bucket.wait_for_turn()
        with self._bucket.under_way(), self._meter.batch():
            yield

    def measured(self) -> Measured:
        """Returns the use; a batch counts once the GPU has finished it."""
        self._bucket.charge_use(self._meter.settle_finished())
        return self._bucket.measured()

    def release(self) -> None:
        """Ends every wait; later batches are counted but not delayed."""
        self._bucket.release()
