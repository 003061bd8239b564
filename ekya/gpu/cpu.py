"""The backend of a machine without a GPU: a "GPU" is one core-second of thread time a second."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from ekya.core.units import FULL_GPU_MILLI
from ekya.gpu.bucket import Clocks, TokenBucket
from ekya.gpu.protocol import Capability, Grants, ShareHandle, ShareJob, round_down

_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    # glibc would keep what freed weights leave, for each of some dozen threads by itself.
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": str(4 << 20),
}


@dataclass(frozen=True, slots=True)
class CpuShares:
    """Shares of CPU cores, held by a token bucket on each job's thread time (DESIGN §4, §6).

    Attributes:
        cores: how many there are, or a part of one; each is one "GPU".
        clocks: what the buckets read; tests pass their own.
    """

    cores: float
    clocks: Clocks | None = None

    def probe(self) -> Capability:
        """Always usable."""
        return Capability(
            usable=True,
            enforcement="cooperative",
            device="cpu",
            capacity_milli=self._capacity_milli(),
            step_milli=1,
            live_resize=True,
            why=f"{told(self.cores)}, each standing for one GPU; "
            "every job counts its thread time and waits when it has used its share",
        )

    def quantise(self, shares: Mapping[str, int]) -> Grants:
        """To the thousandth of a core."""
        return round_down(shares, 1, self._capacity_milli())

    def open(self, gpus: int) -> AbstractContextManager["CpuShares"]:
        """Nothing has to be started."""
        return nullcontext(self)

    def actor_env(self, job: ShareJob) -> Mapping[str, str]:
        """One thread an actor, since only the threads that call ``scope`` are counted; no GPU."""
        return dict(_ENVIRONMENT)

    def attach(self, job: ShareJob) -> ShareHandle:
        """A bucket on the thread time of the threads that use it."""
        return TokenBucket(job.share_milli, self.clocks)

    def _capacity_milli(self) -> int:
        return max(1, int(self.cores * FULL_GPU_MILLI))


def told(cores: float) -> str:
    """For people."""
    return f"{cores:.3g} CPU core{'' if cores == 1 else 's'}"
