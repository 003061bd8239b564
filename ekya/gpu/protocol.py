"""The seam between whoever decides shares and whatever enforces them (DESIGN §6)."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal, Protocol

from ekya.core.gpu_groups import GpuGroups
from ekya.gpu.sm_layout import SmSpan

Enforcement = Literal["hard", "cap", "cooperative"]
"""``hard``: a job gets its share and no more, whatever the others do. ``cap``: no more than its share.
``cooperative``: no more than its share as long as the job itself keeps to it."""

Device = Literal["cpu", "cuda"]
"""The torch device on which jobs of a backend run."""

Role = Literal["inference", "retraining", "preparation"]
"""What a job does. An inference lives for the whole run, the others for a part of a window."""


@dataclass(frozen=True, slots=True)
class Capability:
    """What a backend can do on this machine.

    Attributes:
        usable: whether it works here.
        enforcement: how strongly a share is held.
        device: where its jobs run.
        capacity_milli: all GPUs together; 0 where it is not usable.
        step_milli: the smallest step between two shares that it can tell apart.
        live_resize: whether the share of a running job can change.
        why: one sentence: what it found, or what is missing and how to get it.
        groups: of multiprocessors, where a backend shares these out: a training with as much as one or
            more has whole groups, and loses what is over. None elsewhere.
    """

    usable: bool
    enforcement: Enforcement
    device: Device
    capacity_milli: int
    step_milli: int
    live_resize: bool
    why: str
    groups: GpuGroups | None = None


@dataclass(frozen=True, slots=True)
class ShareJob:
    """A process that is to work at a share.

    Attributes:
        name: what people call its actor, for example ``inference/cam-2``. Nothing parses it.
        role: what it does.
        share_milli: its share when it starts.
        gpu: position of its GPU among those that the backend was opened for, from 0 on. A process stays
            on one GPU while it lives. Where all GPUs are one pool, as cores are, it says nothing.
    """

    name: str
    role: Role
    share_milli: int
    gpu: int = 0


@dataclass(frozen=True, slots=True)
class Grants:
    """Shares as they can be enforced.

    Attributes:
        share_milli: by job name, never above what was asked, and in sum never above the capacity.
        lost_milli: what quantising cost, over all jobs.
        spans: the SMs of each job, where a backend shares these out; no two overlap.
    """

    share_milli: Mapping[str, int]
    lost_milli: int
    spans: Mapping[str, SmSpan] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Resized:
    """What came of a resize.

    Attributes:
        share_milli: the share that holds from now on; not what was asked where that cannot be done.
        took_us: until it held.
        note: why it is not what was asked; empty where it is.
        settled: False while a batch under way holds it up: then the handle is asked again.
    """

    share_milli: int
    took_us: int
    note: str = ""
    settled: bool = True


@dataclass(frozen=True, slots=True)
class Measured:
    """What a job really used since it was last asked.

    Attributes:
        used_us: GPU time that batches used that ended since then; on a CPU machine thread time.
        wall_us: time since then.
    """

    used_us: int
    wall_us: int

    @property
    def share_milli(self) -> int:
        """Used time as a part of all time; 0 where no time has passed."""
        return round(1000 * self.used_us / self.wall_us) if self.wall_us > 0 else 0


class ShareHandle(Protocol):
    """A job's grip on its share, inside its own process. Every method may be called by any thread."""

    def resize(self, share_milli: int) -> Resized:
        """Changes the share; a batch that waits for its turn notices at once.

        Returns when the share holds, at a boundary between two batches. Where a batch takes long it says what
        still holds and that it is not settled.
        """

    def scope(self) -> AbstractContextManager[None]:
        """Around each batch: waits where the share asks for it, and counts what the batch used."""

    def measured(self) -> Measured:
        """What was used since the last call, or since the start."""

    def release(self) -> None:
        """The job is ending: every wait ends now, and nothing holds it back any more."""


class ShareBackend(Protocol):
    """One way to hold jobs to their shares."""

    def probe(self) -> Capability:
        """What it can do here; starts nothing and makes no CUDA context."""

    def quantise(self, shares: Mapping[str, int]) -> Grants:
        """Rounds asked shares (thousandths by job name) down to what can be enforced."""

    def open(self, gpus: int) -> AbstractContextManager["ShareBackend"]:
        """Around a whole run: entered before any job's process is made, left when all have ended.

        Starts what the backend needs besides the jobs, and ends it. What it gives is the backend of the
        run: a plain value that travels to the jobs' processes. It is open in one process only.

        Args:
            gpus: how many GPUs the run uses, at least 1; the first ones.

        Raises:
            UserError: it could not be started.
        """

    def actor_env(self, job: ShareJob) -> Mapping[str, str]:
        """Environment of the job's process, to be set before CUDA starts in it."""

    def attach(self, job: ShareJob) -> ShareHandle:
        """Called inside the job's process, once for each job that runs in it."""


def round_down(shares: Mapping[str, int], step_milli: int, capacity_milli: int) -> Grants:
    """Multiples of ``step_milli`` at or under what was asked, in sum at most the capacity.

    Where more is asked than there is, everybody gives up the same part.
    """
    asked = sum(shares.values())
    limit = min(asked, capacity_milli)
    granted = {
        name: share * limit // asked // step_milli * step_milli if asked else 0
        for name, share in shares.items()
    }
    return Grants(granted, asked - sum(granted.values()))
