"""Share backend on CUDA's multi-process service (MPS): processes whose kernels run at the same time."""

import ctypes
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from ekya.core.errors import UserError
from ekya.core.units import FULL_GPU_MILLI
from ekya.gpu.backends.backend import Capability, ShareHandle, ShareJob
from ekya.gpu.backends.batch_meter import RecordMark, start_cuda
from ekya.gpu.backends.duty_cycle import DutyCycleHandle
from ekya.gpu.backends.token_bucket import Clocks
from ekya.gpu.mps.control import JOIN_WITHIN_S, MpsError
from ekya.gpu.mps.service import FindMps, MpsEnvironment, find_mps, mps_service
from ekya.gpu.nvml import GpuInventory

_LOG = logging.getLogger(__name__)

PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
"""CUDA reads it once, when a process becomes an MPS client."""

TRAINER_CAP_MILLI = 900
"""Cap of a trainer that outlives its shares: a tenth of the SMs stays free of its kernels, so that a frame
need not wait for one to end. Not yet measured on a GPU."""

_PERCENT_MILLI = 10

_VOLTA, _MOST_CLIENTS, _MOST_BEFORE_VOLTA = 7, 48, 16
"""Major compute capability from which on a GPU takes more clients of MPS, and how many it takes."""

_BACK_WITHIN_S = 20.0
"""Time within which a daemon that died and was restarted replies again."""

_CONNECT_AGAIN_S = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
"""Back-off between attempts to connect: a daemon starts its server for the first client and refuses until
then."""

_LIBRARY = "libcuda.so.1"
_MPS_STARTS = (805, 806, 807)
"""CUDA errors: MPS connection failed, MPS RPC failure, MPS server not ready."""

_MPS_IS_FULL = 808
"""CUDA error: as many clients as the GPU takes."""


class NoCudaError(Exception):
    """This process cannot use CUDA; the message says why, as a clause.

    Attributes:
        mps_starts: whether a retry may succeed once an MPS server has started.
    """

    def __init__(self, why: str, mps_starts: bool = False) -> None:
        super().__init__(why)
        self.mps_starts = mps_starts


def make_context() -> None:
    """Retains the first visible GPU's primary context, which torch also uses, until this process ends.

    Raises:
        NoCudaError: there is no driver, or one of its calls fails.
    """
    try:
        driver = ctypes.CDLL(_LIBRARY)
    except OSError:
        raise NoCudaError(f"{_LIBRARY} cannot be loaded (it comes with the NVIDIA driver)") from None
    device, context = ctypes.c_int(), ctypes.c_void_p()
    _require("cuInit", driver.cuInit(0))
    _require("cuDeviceGet", driver.cuDeviceGet(ctypes.byref(device), 0))
    _require("cuDevicePrimaryCtxRetain", driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))


def _require(call: str, result: int) -> None:
    if result == _MPS_IS_FULL:
        raise NoCudaError("this GPU takes no more clients of MPS; set 'processes: gpu' in the fleet file")
    if result:
        raise NoCudaError(f"{call} gives CUDA error {result}", result in _MPS_STARTS)


@dataclass(frozen=True, slots=True)
class MpsShares:
    """Holds trainers to their shares under a cap on the SMs, and lets inference run freely.

    A client's percentage of the SMs is fixed while the client lives: a trainer whose share is known when it
    starts is capped at that share, one that lives for the whole run at ``TRAINER_CAP_MILLI``. Under its cap
    it waits between batches. Inference is not capped and does not wait: its share is the rate planned for it.

    Attributes:
        inventory: the GPUs.
        look: finds MPS on this machine; tests pass their own.
        clocks: clocks of the handles.
        connect: makes a CUDA context in a job's process, which makes the process a client.
        start_cuda: starts torch's CUDA in a job's process.
        sleep: waits between attempts to connect.
        environment: the daemons of the run; None before the backend is opened.
    """

    inventory: GpuInventory
    look: FindMps = find_mps
    clocks: Clocks | None = None
    connect: Callable[[], None] = make_context
    start_cuda: Callable[[], RecordMark] = start_cuda
    sleep: Callable[[float], None] = time.sleep
    environment: MpsEnvironment | None = None

    def probe_machine(self) -> Capability:
        """Reports the backend usable if the driver lists a GPU and the MPS control program is found."""
        found = self.look(self.inventory)
        old = any(gpu.compute is not None and gpu.compute < _VOLTA for gpu in self.inventory.gpus)
        return Capability(
            usable=found.usable,
            device="cuda",
            capacity_milli=len(self.inventory.gpus) * FULL_GPU_MILLI if found.usable else 0,
            step_milli=1,
            why=found.why,
            most_processes=_MOST_BEFORE_VOLTA if old else _MOST_CLIENTS,
        )

    @contextmanager
    def open(self, gpus: int) -> Iterator["MpsShares"]:
        """Yields the backend with a daemon for each GPU."""
        with mps_service(self.look(self.inventory), self.inventory.gpus[:gpus]) as environment:
            yield replace(self, environment=environment)

    def actor_env(self, job: ShareJob) -> Mapping[str, str]:
        """Returns the variables that set the process's daemon, GPU and fixed percentage."""
        return {**self._opened().clients[job.gpu], PERCENTAGE: str(cap_percent(job))}

    def attach_job(self, job: ShareJob) -> ShareHandle:
        """Returns a handle capped at the percentage with which this process was actually started.

        Raises:
            UserError: this process is not a client of exactly one MPS server.
        """
        self.require_client(job)
        cap_milli = int(os.environ[PERCENTAGE]) * _PERCENT_MILLI
        handle = DutyCycleHandle(self.start_cuda(), job.share_milli, self.clocks, cap_milli)
        if job.role == "inference":
            handle.release()
        return handle

    def require_client(self, job: ShareJob) -> None:
        """Makes this process a client of its daemon and verifies the connection.

        Raises:
            UserError: this process is not a client of exactly one MPS server.
        """
        try:
            # If the daemon is down when CUDA starts, the process runs without MPS for its whole life.
            self._opened().own_daemon.wait_up(_BACK_WITHIN_S)
            self._connect(job)
            self._opened().own_daemon.require_client(os.getpid(), JOIN_WITHIN_S)
        except (NoCudaError, MpsError) as error:
            raise UserError(
                f"{job.name} cannot work at a share: {error}; --shares takes other backends"
            ) from None

    def _connect(self, job: ShareJob) -> None:
        """Connects, with retries while the daemon's server starts.

        Raises:
            NoCudaError: the error has another cause, or all retries failed.
        """
        for pause_s in _CONNECT_AGAIN_S:
            try:
                return self.connect()
            except NoCudaError as error:
                if not error.mps_starts:
                    raise
                _LOG.info("%s: %s; its MPS server may be starting, it is tried again", job.name, error)
            self.sleep(pause_s)
        return self.connect()

    def _opened(self) -> MpsEnvironment:
        if self.environment is None:
            raise RuntimeError("an MPS backend has no daemons before it is opened")
        return self.environment


def cap_percent(job: ShareJob) -> int:
    """Returns the percentage of the SMs that a process has for its whole life."""
    if job.role == "inference":
        return 100
    # Rounded up, so that the cap is not below the share, which is held by waiting.
    return -(-min(job.share_milli or TRAINER_CAP_MILLI, FULL_GPU_MILLI) // _PERCENT_MILLI)
