"""What a process that works on green contexts holds of each GPU, for all of its jobs."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from ekya.gpu.claims import SmClaims, claims_folder
from ekya.gpu.cuda_driver import CudaCalls, CudaDriver
from ekya.gpu.gated_levels import GatedLevels, spans_ahead
from ekya.gpu.gpu_streams import GpuStreams
from ekya.gpu.levels import LevelPool

DTYPES = ("float32", "float16", "bfloat16")
"""The types that jobs use: torch's names. The last one only where the GPU has it."""


@dataclass(frozen=True, slots=True)
class GreenProcess:
    """What a process holds of one GPU, for all of its jobs.

    Attributes:
        levels: green contexts, made ahead and checked.
        streams: of the library that runs kernels.
        claims: opens a job's claims.
    """

    levels: GatedLevels
    streams: GpuStreams
    claims: Callable[[], SmClaims]


def open_process(device: int) -> GreenProcess:
    """Starts CUDA in this process and makes levels ahead.

    Args:
        device: as CUDA counts them in this process.

    Raises:
        UserError: there is no driver.
        SmDriverError: the driver refuses.
    """
    import torch

    from ekya.arithmetic.gate import NumericGate
    from ekya.gpu.torch_streams import TorchStreams

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
    """What this process holds of each GPU, from the first job on. Nothing of it travels to another process.

    Attributes:
        make: starts CUDA on a GPU.
    """

    make: Callable[[int], GreenProcess] = open_process
    _held: dict[int, GreenProcess] = field(default_factory=dict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def of(self, device: int) -> GreenProcess:
        """What is held of a GPU; starts CUDA there when it is first asked."""
        with self._lock:
            if device not in self._held:
                self._held[device] = self.make(device)
            return self._held[device]

    def close(self) -> None:
        """Waits for all work and destroys all levels."""
        while self._held:
            self._held.popitem()[1].levels.close()

    def __reduce__(self) -> tuple[type["GreenProcesses"], tuple[Callable[[int], GreenProcess]]]:
        """In another process nothing is held yet."""
        return GreenProcesses, (self.make,)
