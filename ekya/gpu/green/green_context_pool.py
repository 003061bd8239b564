"""Per-process resources for green contexts on each GPU, shared by the process's jobs."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from ekya.gpu.backends.meter import GpuStreams
from ekya.gpu.green.claims import SmClaims, claims_folder
from ekya.gpu.green.cuda_driver import CudaCalls, CudaDriver
from ekya.gpu.green.gated_levels import GatedLevels, spans_ahead
from ekya.gpu.green.levels import LevelPool

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


def open_process(device: int) -> GreenProcess:
    """Starts CUDA in this process and makes levels ahead.

    Args:
        device: CUDA index in this process.

    Raises:
        UserError: there is no driver.
        SmDriverError: a driver call fails.
    """
    import torch

    from ekya.gpu.backends.torch_streams import TorchStreams
    from ekya.system.numeric_check import NumericGate

    driver = CudaDriver(CudaCalls(), device)
    streams = TorchStreams(device)
    has_bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
    dtypes = [getattr(torch, name) for name in DTYPES if name != "bfloat16" or has_bfloat16]
    gate = NumericGate(f"cuda:{device}", dtypes)
    pool = LevelPool(driver)
    levels = GatedLevels(pool, streams, gate.check)
    levels.make_ahead(spans_ahead(pool.layout))
    path = claims_folder() / driver.uuid
    return GreenProcess(levels, streams, lambda: SmClaims(path, pool.layout.groups))


@dataclass(slots=True, eq=False)
class GreenProcesses:
    """Resources of this process on each GPU, opened with the first job. Pickled without them.

    Attributes:
        make: starts CUDA on a GPU.
    """

    make: Callable[[int], GreenProcess] = open_process
    _held: dict[int, GreenProcess] = field(default_factory=dict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def of(self, device: int) -> GreenProcess:
        """Returns the resources of a GPU; the first call starts CUDA there."""
        with self._lock:
            if device not in self._held:
                self._held[device] = self.make(device)
            return self._held[device]

    def close(self) -> None:
        """Waits for all work, then destroys all levels."""
        while self._held:
            self._held.popitem()[1].levels.close()

    def __reduce__(self) -> tuple[type["GreenProcesses"], tuple[Callable[[int], GreenProcess]]]:
        """Pickles only ``make``: resources do not travel to another process."""
        return GreenProcesses, (self.make,)
