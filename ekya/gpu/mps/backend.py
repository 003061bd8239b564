"""Share backend on CUDA's multi-process service (MPS): a percentage of the SMs for each process."""

import ctypes
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from ekya.core.errors import UserError
from ekya.core.units import FULL_GPU_MILLI
from ekya.gpu.backends.backend import Capability, Measured, Resized, ShareHandle, ShareJob
from ekya.gpu.backends.gpu_streams import GpuStreams, TorchStreams
from ekya.gpu.backends.token_bucket import Clocks, TokenBucket
from ekya.gpu.mps.control import JOIN_WITHIN_S, MpsError
from ekya.gpu.mps.service import FindMps, MpsEnvironment, find_mps, mps_service
from ekya.gpu.nvml import GpuInventory

_LOG = logging.getLogger(__name__)

PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
"""CUDA reads it once, when a process becomes an MPS client."""

STEP_MILLI = 10
"""One percent: MPS takes whole percentages."""

TRAINER_CAP_MILLI = 900
"""Cap of a trainer that outlives its shares: a tenth of the SMs stays free of its kernels, so that a frame
need not wait for one to end. Not yet measured on a GPU."""

_BACK_WITHIN_S = 20.0
"""Time within which a daemon that died and was restarted replies again."""

_CONNECT_AGAIN_S = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
"""Back-off between attempts to connect: a daemon starts its server for the first client and refuses until
then."""

_FIXED = "the percentage of a running MPS client cannot change; it keeps its cap"

_LIBRARY = "libcuda.so.1"
_SUCCESS = 0
_MPS_STARTS = (805, 806, 807)
"""CUDA errors: MPS connection failed, MPS RPC failure, MPS server not ready."""


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
    if result != _SUCCESS:
        raise NoCudaError(f"{call} gives CUDA error {result}", result in _MPS_STARTS)


@dataclass(frozen=True, slots=True)
class MpsShares:
    """Caps each process at the percentage of the SMs with which it starts.

    A client's percentage is fixed while the client lives, so only trainers are capped: one whose share is
    fixed when it starts at that share, one that lives for the whole run at ``TRAINER_CAP_MILLI``. Inference
    is never capped. The share under the cap changes only where a duty cycle is allowed.

    Attributes:
        inventory: the GPUs.
        look: finds MPS on this machine; tests pass their own.
        duty_cycle: hold jobs to their share under the cap by waiting between batches.
        clocks: read by the duty cycle; spent time is time inside batches.
        connect: makes a CUDA context in a job's process, which makes the process a client.
        streams: starts torch's CUDA in a job's process and waits for its batches.
        sleep: waits between attempts to connect.
        environment: the daemons of the run; None before the backend is opened.
    """

    inventory: GpuInventory
    look: FindMps = find_mps
    duty_cycle: bool = False
    clocks: Clocks | None = None
    connect: Callable[[], None] = make_context
    streams: Callable[[], GpuStreams] = TorchStreams
    sleep: Callable[[float], None] = time.sleep
    environment: MpsEnvironment | None = None

    def probe_machine(self) -> Capability:
        """Reports the backend usable if the driver lists a GPU and the MPS control program is found."""
        found = self.look(self.inventory)
        return Capability(
            usable=found.usable,
            enforcement="cooperative" if self.duty_cycle else "cap",
            device="cuda",
            capacity_milli=len(self.inventory.gpus) * FULL_GPU_MILLI if found.usable else 0,
            step_milli=STEP_MILLI,
            why=found.why,
        )

    @contextmanager
    def open(self, gpus: int) -> Iterator["MpsShares"]:
        """Yields the backend with a daemon for each GPU, or with the daemons that the user has named."""
        with mps_service(self.look(self.inventory), self.inventory.gpus[:gpus]) as environment:
            yield replace(self, environment=environment)

    def actor_env(self, job: ShareJob) -> Mapping[str, str]:
        """Returns the variables that set the process's daemon, GPU and fixed percentage."""
        return self._opened().client_environment(job.gpu) | {PERCENTAGE: str(cap_percent(job))}

    def attach_job(self, job: ShareJob) -> ShareHandle:
        """Returns a handle capped at the percentage with which this process was actually started.

        Raises:
            UserError: this process is not a client of exactly one MPS server.
        """
        self.require_client(job)
        cap_milli = int(os.environ[PERCENTAGE]) * STEP_MILLI
        return MpsHandle(cap_milli, job.share_milli, self.duty_cycle, self.streams(), self.clocks)

    def require_client(self, job: ShareJob) -> None:
        """Makes this process a client of its daemon and verifies the connection.

        Raises:
            UserError: this process is not a client of exactly one MPS server.
        """
        try:
            # If the daemon is down when CUDA starts, the process runs without MPS for its whole life.
            self._opened().wait_for_daemon(_BACK_WITHIN_S)
            self._connect(job)
            self._opened().require_client(JOIN_WITHIN_S)
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
    cap_milli = job.share_milli if job.share_milli >= STEP_MILLI else TRAINER_CAP_MILLI
    return min(cap_milli, FULL_GPU_MILLI) // STEP_MILLI


class MpsHandle:
    """Handle of one MPS client's share. A ``ShareHandle``.

    MPS counts nothing itself, so use is measured as time inside batches x the cap: an upper bound. A batch
    therefore ends only when the GPU has finished the thread's work.
    """

    def __init__(
        self,
        cap_milli: int,
        share_milli: int,
        duty_cycle: bool,
        streams: GpuStreams,
        clocks: Clocks | None = None,
    ) -> None:
        self._cap_milli = cap_milli
        self._streams = streams
        self._duty_cycle = duty_cycle
        wall = clocks or Clocks()
        # Spent time is wall time here: during a batch the GPU works for this job.
        self._bucket = TokenBucket(FULL_GPU_MILLI, Clocks(wall.wall_ns, wall.wall_ns, wall.wait))
        self.resize(share_milli)

    def resize(self, share_milli: int) -> Resized:
        """Sets the duty cycle under the cap if one is allowed; otherwise changes nothing."""
        if not self._duty_cycle:
            note = "" if share_milli == self._cap_milli else _FIXED
            return Resized(self._cap_milli, 0, note)
        effective = min(share_milli, self._cap_milli)
        # Rounded down, so that the job never gets more than its share.
        part_milli = effective * FULL_GPU_MILLI // self._cap_milli
        resized = self._bucket.resize(part_milli)
        if not resized.settled:
            return replace(resized, share_milli=resized.share_milli * self._cap_milli // FULL_GPU_MILLI)
        note = "" if effective == share_milli else "an MPS client cannot have more than its cap"
        return Resized(effective, resized.took_us, note)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Context manager around one batch; at its end waits for the kernels that the host has queued."""
        with self._bucket.scope():
            yield
            self._streams.wait_for_stream(self._streams.current())

    def measured(self) -> Measured:
        """Returns an upper bound of the use: time inside batches x the cap."""
        inside = self._bucket.measured()
        return Measured(inside.used_us * self._cap_milli // FULL_GPU_MILLI, inside.wall_us)

    def release(self) -> None:
        """Releases the duty cycle: every wait ends."""
        self._bucket.release()
