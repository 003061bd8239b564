"""Events: the loop's only source of information, applied in the order of `in_order`."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import get_args

from ekya.core.configs import InferenceConfig
from ekya.core.gpus import GpuUse
from ekya.core.preparation_events import (
    AccuracyAudited,
    DriftDetected,
    InferenceProfiled,
    LabelsReady,
    MoreLabelsDue,
    PreparationEnded,
    ProfilerBack,
    ProfilerDown,
    ProfileReady,
    RetrainProfiled,
)
from ekya.core.requests import Request
from ekya.core.retraining_events import (
    MemoryMeasured,
    MemoryShort,
    ModelCached,
    ModelSwapped,
    RetrainFailed,
    RetrainFinished,
    RetrainProgress,
    RolledBack,
    Swapped,
)
from ekya.core.shares import ShareHolder
from ekya.core.units import StreamId
from ekya.core.view import InferenceOption

__all__ = [
    "AccuracyAudited",
    "DriftDetected",
    "InferenceProfiled",
    "LabelsReady",
    "MemoryMeasured",
    "MemoryShort",
    "ModelCached",
    "ModelSwapped",
    "MoreLabelsDue",
    "PreparationEnded",
    "ProfileReady",
    "ProfilerBack",
    "ProfilerDown",
    "RetrainFailed",
    "RetrainFinished",
    "RetrainProfiled",
    "RetrainProgress",
    "RolledBack",
    "Swapped",
]
"""Events of other files that are named by this one, too: the loop takes them all alike."""


class Role(StrEnum):
    """The two workers of a stream."""

    INFERENCE = "inference"
    RETRAINING = "retraining"


@dataclass(frozen=True, slots=True)
class StreamAdded:
    """A stream serves its base model.

    Attributes:
        inference_options: Λ, as priors until they are profiled.
        gpu: of its processes, where it is added to a live run; None where the run's options name it.
    """

    t_us: int
    stream: StreamId
    inference_options: tuple[InferenceOption, ...]
    gpu: int | None = None


@dataclass(frozen=True, slots=True)
class WindowClosed:
    """A window is over; its unfinished work stops."""

    t_us: int
    index: int


@dataclass(frozen=True, slots=True)
class WindowOpened:
    """A window begins; its labels come from the window before it."""

    t_us: int
    index: int
    end_us: int


@dataclass(frozen=True, slots=True)
class ShareMeasured:
    """Share that a worker actually used since the last such event."""

    t_us: int
    stream: StreamId
    role: Role
    share_milli: int


@dataclass(frozen=True, slots=True)
class NeedMeasured:
    """Share that a λ would have used recently on all its frames, extrapolated from the analysed ones.

    A profile measures frames without concurrent jobs, which slow them down, and scenes may become crowded.
    """

    t_us: int
    stream: StreamId
    config: InferenceConfig
    share_milli: int


@dataclass(frozen=True, slots=True)
class FramesCounted:
    """Numbers of a stream's due and analysed frames since the last such event.

    Attributes:
        window: in which they arrived; no event spans two.
        due: frames that λ selects: those whose index is a multiple of its ``every``.
        analysed: frames that the model analysed.
        late_gpu: frames that were due and not analysed, while the one before took longer on the GPU, and to
            wait for it, than on the host.
    """

    t_us: int
    stream: StreamId
    window: int
    due: int
    analysed: int
    late_gpu: int = 0


@dataclass(frozen=True, slots=True)
class Warned:
    """Warning of a process of the run; each process reports each text once.

    Attributes:
        source: readable name of the process.
        text: one line, without passwords.
    """

    t_us: int
    source: str
    text: str


@dataclass(frozen=True, slots=True)
class GpuMeasured:
    """Use of the GPUs in a window; not emitted without GPUs that can be read."""

    t_us: int
    window: int
    gpus: tuple[GpuUse, ...]


@dataclass(frozen=True, slots=True)
class ShareResized:
    """A job has changed its share between two batches, or has ended and released it.

    Attributes:
        holder: the job.
        epoch: number of the plan that required the change.
        share_milli: share that its handle reports; can be less than granted.
        took_us: from the request to the change.
        note: why the share differs from the granted one; empty where it does not.
    """

    t_us: int
    holder: ShareHolder
    epoch: int
    share_milli: int
    took_us: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class ShareOverdue:
    """A job has not released its share within its limit; its worker is ended and restarted.

    Attributes:
        holder: the job.
        epoch: number of the newest plan.
        waited_us: time since the first request.
    """

    t_us: int
    holder: ShareHolder
    epoch: int
    waited_us: int


@dataclass(frozen=True, slots=True)
class WorkerDied:
    """A worker of a stream has died; its memory is lost.

    Attributes:
        charged: whether the death counts for the stream; False where another stream of the process is known
            to be the one that was being worked for.
    """

    t_us: int
    stream: StreamId
    role: Role
    reason: str
    charged: bool = True


@dataclass(frozen=True, slots=True)
class WorkerBack:
    """A dead worker runs again, with the last weights that served.

    Attributes:
        gpu: of its processes, where they have moved; None where they are as before.
        left_gpu: where they were, on a node that is gone; with ``gpu`` alone.
    """

    t_us: int
    stream: StreamId
    role: Role
    gpu: int | None = None
    left_gpu: int | None = None


@dataclass(frozen=True, slots=True)
class StreamReadmitted:
    """A stream that was set aside is given another try: its workers are started again."""

    t_us: int
    stream: StreamId


@dataclass(frozen=True, slots=True)
class StreamLost:
    """A camera gives no frames for now."""

    t_us: int
    stream: StreamId
    reason: str


@dataclass(frozen=True, slots=True)
class StreamBack:
    """A lost camera gives frames again."""

    t_us: int
    stream: StreamId


@dataclass(frozen=True, slots=True)
class StreamEnded:
    """A stream has given its last frame."""

    t_us: int
    stream: StreamId


@dataclass(frozen=True, slots=True)
class CapacityLent:
    """Jobs of other servers hold this share of the GPUs here from now on, in total."""

    t_us: int
    share_milli: int


Event = (
    StreamAdded
    | StreamReadmitted
    | WorkerBack
    | StreamBack
    | RetrainProgress
    | RetrainFinished
    | MemoryShort
    | RetrainFailed
    | MemoryMeasured
    | ModelSwapped
    | RolledBack
    | ModelCached
    | WorkerDied
    | StreamLost
    | StreamEnded
    | Request
    | CapacityLent
    | ShareMeasured
    | NeedMeasured
    | FramesCounted
    | DriftDetected
    | MoreLabelsDue
    | Warned
    | GpuMeasured
    | ShareResized
    | ShareOverdue
    | LabelsReady
    | InferenceProfiled
    | ProfileReady
    | RetrainProfiled
    | AccuracyAudited
    | PreparationEnded
    | ProfilerDown
    | ProfilerBack
    | WindowClosed
    | WindowOpened
)
"""All events, in the order in which those of one instant are applied: first events of the window that ends,
then the border of the windows itself, then events of the window that begins."""

_RANK = {kind: rank for rank, kind in enumerate(get_args(Event))}


def in_order(events: Iterable[Event]) -> tuple[Event, ...]:
    """Returns events sorted by time, then type; the sort is stable."""
    return tuple(sorted(events, key=lambda event: (event.t_us, _RANK[type(event)])))
