"""Interface of share backends, which enforce the shares that the loop decides."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

Device = Literal["cpu", "cuda"]
"""The torch device on which jobs of a backend run."""

Role = Literal["inference", "retraining", "preparation"]
"""Kind of a job. An inference lives for the whole run, the others for a part of a window."""


@dataclass(frozen=True, slots=True)
class Capability:
    """Capabilities of a backend on this machine.

    Attributes:
        usable: whether the backend works here.
        device: torch device on which its jobs run.
        capacity_milli: all GPUs together; 0 where the backend is not usable.
        step_milli: the smallest step between two shares.
        why: one sentence: what was found, or what is missing and how to get it.
        most_processes: number of processes that one GPU takes; None without a limit.
    """

    usable: bool
    device: Device
    capacity_milli: int
    step_milli: int
    why: str
    most_processes: int | None = None


@dataclass(frozen=True, slots=True)
class ShareJob:
    """A job that works at a share.

    Attributes:
        name: readable name of its actor, for example ``inference/cam-2``; never parsed.
        role: kind of the job.
        share_milli: share at the start.
        gpu: position of its GPU among those that the backend was opened for, from 0. A process stays
            on one GPU while it lives. Unused where the capacity is one pool, as with CPU cores.
    """

    name: str
    role: Role
    share_milli: int
    gpu: int = 0


@dataclass(frozen=True, slots=True)
class Resized:
    """Result of a resize.

    Attributes:
        share_milli: the share from now on; differs from the requested one where that is impossible.
        took_us: time until the share took effect.
        note: why the share differs from the requested one; empty where it does not.
        settled: False while a running batch delays the change; the caller then resizes again.
    """

    share_milli: int
    took_us: int
    note: str = ""
    settled: bool = True


@dataclass(frozen=True, slots=True)
class Measured:
    """Measured use of a job since the previous measurement.

    Attributes:
        used_us: GPU time (on a CPU machine: thread time) of the batches that ended since then.
        wall_us: wall time since then.
    """

    used_us: int
    wall_us: int

    @property
    def share_milli(self) -> int:
        """Used time as a part of wall time; 0 where no time has passed."""
        return round(1000 * self.used_us / self.wall_us) if self.wall_us > 0 else 0


class ShareHandle(Protocol):
    """Handle of a job's share inside the job's process. All methods are thread-safe."""

    def resize(self, share_milli: int) -> Resized:
        """Changes the share; waiting batches notice the change immediately.

        Returns when the share has taken effect, between two batches. If a batch runs too long, the result
        holds the share that is still in effect, with ``settled`` False.
        """

    def scope(self) -> AbstractContextManager[None]:
        """Context manager around each batch: waits as the share requires, and measures the batch."""

    def measured(self) -> Measured:
        """Returns the use since the last call, or since the start."""

    def release(self) -> None:
        """Ends every wait, now and later, since the job is ending."""


class ShareBackend(Protocol):
    """Mechanism that enforces jobs' shares."""

    def probe_machine(self) -> Capability:
        """Returns the capabilities on this machine; starts nothing and makes no CUDA context."""

    def open(self, gpus: int) -> AbstractContextManager["ShareBackend"]:
        """Context manager around a whole run: entered before any job's process starts, left after all ended.

        Starts and ends what the backend needs besides the jobs, in one process only. Yields the backend of
        the run: a plain value that can be sent to the jobs' processes.

        Args:
            gpus: how many GPUs the run uses, at least 1; the first ones.

        Raises:
            UserError: the backend could not be started.
        """

    def actor_env(self, job: ShareJob) -> Mapping[str, str]:
        """Returns the environment of the job's process, to be set before CUDA starts in it."""

    def attach_job(self, job: ShareJob) -> ShareHandle:
        """Returns the job's handle; called inside its process, once for each job that runs there."""
