"""Shares by waiting between batches: the token bucket on the GPU's time, by CUDA events (DESIGN §6)."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from ekya.core.units import FULL_GPU_MILLI
from ekya.gpu.bucket import Clocks, TokenBucket
from ekya.gpu.gpu_streams import GpuStreams, only_gpu
from ekya.gpu.meter import BatchMeter
from ekya.gpu.mps_control import VISIBLE_VARIABLE
from ekya.gpu.nvml import GpuInventory
from ekya.gpu.protocol import Capability, Grants, Measured, Resized, ShareHandle, ShareJob, round_down
from ekya.gpu.torch_build import find_torch

UNDER_WAY = 1
"""Batches that the GPU may still have to do when the next one begins: the host prepares it meanwhile."""


def cpu_only_torch() -> bool:
    """Whether the installed torch was built without CUDA; does not import it."""
    return find_torch().cuda is None


@dataclass(frozen=True, slots=True)
class DutyCycleShares:
    """Jobs that take turns on a GPU and keep to their part of its time by themselves.

    Attributes:
        inventory: the GPUs.
        streams: starts CUDA in a job's process.
        clocks: what the buckets read; tests pass their own.
        without_cuda: whether torch cannot use a GPU.
    """

    inventory: GpuInventory
    streams: Callable[[], GpuStreams] = only_gpu
    clocks: Clocks | None = None
    without_cuda: Callable[[], bool] = cpu_only_torch

    def probe(self) -> Capability:
        """Usable wherever there is a GPU that torch can use."""
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
            live_resize=True,
            why=why,
        )

    def quantise(self, shares: Mapping[str, int]) -> Grants:
        """To the thousandth of a GPU."""
        return round_down(shares, 1, len(self.inventory.gpus) * FULL_GPU_MILLI)

    def open(self, gpus: int) -> AbstractContextManager["DutyCycleShares"]:
        """Nothing has to be started."""
        return nullcontext(self)

    def actor_env(self, job: ShareJob) -> Mapping[str, str]:
        """The job's GPU, and no other, by its UUID."""
        return {VISIBLE_VARIABLE: self.inventory.gpus[job.gpu].uuid}

    def attach(self, job: ShareJob) -> ShareHandle:
        """A bucket on the time that the GPU works for the job."""
        return DutyCycleHandle(self.streams(), job.share_milli, self.clocks)


class DutyCycleHandle:
    """One job's part of the GPU's time. A ``ShareHandle``.

    A batch begins when nothing is owed for those that the GPU has done and at most one is still under way.
    So a job uses at most share x time, the bucket's burst and two batches. The host waits for the GPU only
    where a job is a whole batch ahead. Where others work at the same time, a batch takes longer and its job
    is charged for that: it then gets less than its share, never more.
    """

    def __init__(self, streams: GpuStreams, share_milli: int, clocks: Clocks | None = None) -> None:
        self._bucket = TokenBucket(share_milli, clocks)
        self._meter = BatchMeter(streams)

    def resize(self, share_milli: int) -> Resized:
        """The new share holds from the next batch on; returns when there is none of before, as a bucket does.

        Raises:
            ValueError: a negative share.
        """
        return self._bucket.resize(share_milli)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Around one batch. Does not nest. At share 0 it waits until it is resized or released."""
        self._meter.wait_until_under_way(UNDER_WAY)
        self._bucket.charge(self._meter.settle())
        self._bucket.wait_for_turn()
        with self._bucket.under_way(), self._meter.batch():
            yield

    def measured(self) -> Measured:
        """A batch counts when the GPU has done it."""
        self._bucket.charge(self._meter.settle())
        return self._bucket.measured()

    def release(self) -> None:
        """Every wait ends; later batches are counted but never held back."""
        self._bucket.release()
