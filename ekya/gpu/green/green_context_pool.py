"""Green contexts of a process on its GPU, shared by the process's jobs.

Apart from the share backend, since this brings nothing but torch: a GPU is checked without what MPS needs.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from ekya.gpu.backends.backend import ShareJob
from ekya.gpu.backends.gpu_streams import GpuStreams, TorchStreams
from ekya.gpu.green.claims import SmClaims, claims_folder
from ekya.gpu.green.handle import GreenHandle
from ekya.gpu.green.levels import GatedLevels, LevelPool, spans_ahead
from ekya.gpu.green.sm_driver import CudaCalls, CudaDriver

DTYPES = ("float32", "float16", "bfloat16")
"""Names of the torch dtypes that jobs use; bfloat16 only where the GPU supports it."""


@dataclass(frozen=True, slots=True)
class GreenProcess:
    """Resources of one GPU in a process, shared by its jobs.

    Attributes:
        levels: green contexts, made ahead and checked.
        streams: streams of the library that runs kernels.
        claims: opens a job's claims.
    """

    levels: GatedLevels
    streams: GpuStreams
    claims: Callable[[], SmClaims]


def open_process() -> GreenProcess:
    """Starts CUDA on the first GPU that this process sees, and makes levels ahead.

    Raises:
        UserError: there is no driver.
        SmDriverError: a driver call fails.
    """
    import torch

    from ekya.system.numeric_check import NumericGate

    driver = CudaDriver(CudaCalls())
    streams = TorchStreams()
    has_bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
    dtypes = [getattr(torch, name) for name in DTYPES if name != "bfloat16" or has_bfloat16]
    gate = NumericGate("cuda:0", dtypes)
    pool = LevelPool(driver)
    levels = GatedLevels(pool, streams, gate.run_checks)
    levels.make_ahead(spans_ahead(pool.layout))
    # By UUID: processes that see different GPUs give the same GPU different indices.
    path = claims_folder() / driver.uuid
    return GreenProcess(levels, streams, lambda: SmClaims(path, pool.layout.groups))


@dataclass(slots=True, eq=False)
class GreenShares:
    """This process's resources on its GPU, opened with the first job. Pickled without them.

    Attributes:
        make: starts CUDA.
    """

    make: Callable[[], GreenProcess] = open_process
    _process: GreenProcess | None = field(default=None, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def attach_job(self, job: ShareJob) -> GreenHandle:
        """Returns a handle of the job's SMs; the first call starts CUDA and makes levels ahead.

        Raises:
            UserError: there is no driver, or no level can be used.
            SmDriverError: a driver call fails.
        """
        # Held while CUDA starts: jobs of a process may attach at the same time, and levels are made once.
        with self._lock:
            if self._process is None:
                self._process = self.make()
            process = self._process
        return GreenHandle(process.levels, process.streams, process.claims(), job)

    def __reduce__(self) -> tuple[type["GreenShares"], tuple[Callable[[], GreenProcess]]]:
        """Pickles only ``make``: resources do not travel to another process."""
        return GreenShares, (self.make,)
