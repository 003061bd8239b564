"""Share backend of green contexts in MPS clients: dedicated multiprocessors (SMs) for jobs in processes.

A process makes its green contexts once on its GPU, and its jobs share them.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from ekya.gpu.backends.backend import Capability, ShareHandle, ShareJob
from ekya.gpu.backends.gpu_streams import GpuStreams, TorchStreams
from ekya.gpu.green.claims import SmClaims, claims_folder
from ekya.gpu.green.handle import GreenHandle
from ekya.gpu.green.levels import GatedLevels, LevelPool, spans_ahead
from ekya.gpu.green.sm_driver import CudaCalls, CudaDriver, SmReport, coarsest
from ekya.gpu.mps.backend import PERCENTAGE, MpsShares

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

    def attach(self, job: ShareJob) -> GreenHandle:
        """Returns a handle of the job's SMs; the first call starts CUDA and makes levels ahead.

        Raises:
            UserError: there is no driver, or no level can be used.
            SmDriverError: a driver call fails.
        """
        with self._lock:
            if self._process is None:
                self._process = self.make()
            process = self._process
        return GreenHandle(process.levels, process.streams, process.claims(), job)

    def __reduce__(self) -> tuple[type["GreenShares"], tuple[Callable[[], GreenProcess]]]:
        """Pickles only ``make``: resources do not travel to another process."""
        return GreenShares, (self.make,)


_OWN = "training has multiprocessors of its own, and inference shares what is left"


@dataclass(frozen=True, slots=True)
class MpsGreenShares:
    """Combines MPS, which runs processes concurrently, with green contexts, which assign their SMs live.

    Attributes:
        mps: runs the daemons and makes clients; its percentages are not used, since they would hide SMs.
        split_sms: asks the driver how it splits the GPUs; makes no context.
        green: assigns SMs in the process of a job.
    """

    mps: MpsShares
    split_sms: Callable[[], SmReport]
    green: GreenShares = field(default_factory=GreenShares, compare=False)

    def probe(self) -> Capability:
        """Reports the backend usable if MPS is and the driver makes green contexts."""
        clients = self.mps.probe()
        report = self.split_sms() if clients.usable else SmReport((), clients.why)
        usable = bool(report.layouts)
        return Capability(
            usable=usable,
            enforcement="hard",
            device="cuda",
            capacity_milli=clients.capacity_milli if usable else 0,
            step_milli=1,
            groups=coarsest(report.layouts) if usable else None,
            why=f"{clients.why}; {report.why}; {_OWN}" if usable else report.why,
        )

    @contextmanager
    def open(self, gpus: int) -> Iterator["MpsGreenShares"]:
        """Yields the backend with an MPS daemon for each GPU."""
        with self.mps.open(gpus) as mps:
            yield replace(self, mps=mps)

    def actor_env(self, job: ShareJob) -> Mapping[str, str]:
        """Returns the environment of an MPS client on the job's GPU that may use all SMs."""
        return {**self.mps.actor_env(job), PERCENTAGE: "100"}

    def attach(self, job: ShareJob) -> ShareHandle:
        """Returns a handle of the job's SMs, on the only GPU that its process sees.

        Raises:
            UserError: this process is not a client of exactly one MPS server, or no level can be used.
        """
        self.mps.require_client(job)
        return self.green.attach(job)
