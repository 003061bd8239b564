"""Share backend for machines without a GPU: a "GPU" is one core-second of thread time per second."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from ekya.core.units import FULL_GPU_MILLI
from ekya.gpu.backends.backend import Capability, ShareHandle, ShareJob
from ekya.gpu.backends.token_bucket import Clocks, TokenBucket

_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    # Otherwise glibc keeps memory of freed weights in a separate arena for each of some dozen threads.
    "MALLOC_ARENA_MAX": "2",
    # A set value is fixed: glibc's own grows with freed blocks, which it then keeps for reuse.
    "MALLOC_MMAP_THRESHOLD_": str(4 << 20),
}


@dataclass(frozen=True, slots=True)
class CpuShares:
    """Shares CPU cores by a token bucket on each job's thread time.

    Attributes:
        cores: number of cores, possibly fractional; each is one "GPU".
        clocks: clocks of the buckets; tests pass their own.
    """

    cores: float
    clocks: Clocks | None = None

    def probe_machine(self) -> Capability:
        """Reports the backend usable, always."""
        return Capability(
            usable=True,
            device="cpu",
            capacity_milli=max(1, int(self.cores * FULL_GPU_MILLI)),
            step_milli=1,
            why=f"{cores_in_words(self.cores)}, each standing for one GPU; "
            "every job counts its thread time and waits when it has used its share",
        )

    def open(self, gpus: int) -> AbstractContextManager["CpuShares"]:
        """Returns this backend; starts nothing."""
        return nullcontext(self)

    def actor_env(self, job: ShareJob) -> Mapping[str, str]:
        """Sets one thread per actor, since only threads that call ``scope`` are counted, and no GPU."""
        return dict(_ENVIRONMENT)

    def attach_job(self, job: ShareJob) -> ShareHandle:
        """Returns a token bucket on the thread time of its calling threads."""
        return TokenBucket(job.share_milli, self.clocks)


def cores_in_words(cores: float) -> str:
    """Formats a number of cores for display."""
    return f"{cores:.3g} CPU core{'' if cores == 1 else 's'}"
