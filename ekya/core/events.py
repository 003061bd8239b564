"""What has happened. The loop learns everything from these, in the order of `in_order`."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from ekya.core.compared import Compared
from ekya.core.configs import InferenceConfig
from ekya.core.elsewhere import CachedModel
from ekya.core.gpu_use import GpuUse
from ekya.core.ids import JobId, ModelVersion, StreamId
from ekya.core.memory import DidNotFit
from ekya.core.profile import FamilyCurve
from ekya.core.shares import ShareHolder
from ekya.core.view import InferenceOption, RetrainOption


class Role(StrEnum):
    """The two workers of a stream."""

    INFERENCE = "inference"
    RETRAINING = "retraining"


@dataclass(frozen=True, slots=True)
class StreamAdded:
    """A stream serves its base model. The options are priors until they are profiled."""

    t_us: int
    stream: StreamId
    inference_options: tuple[InferenceOption, ...]


@dataclass(frozen=True, slots=True)
class WindowClosed:
    """A window is over; what was unfinished in it stops."""

    t_us: int
    index: int


@dataclass(frozen=True, slots=True)
class WindowOpened:
    """A window begins; its labels come from the window before it."""

    t_us: int
    index: int
    end_us: int


@dataclass(frozen=True, slots=True)
class LabelsReady:
    """The golden model has labelled a stream's sample of the window before (paper §4.3).

    Attributes:
        training_crops, validation_crops: labelled crops in each part.
        serving_accuracy: accuracy on the validation part of the serving model; of the one before it, where
            the shadow gate has that one serve again.
        new_classes: the sample holds a class that the serving model does not know.
        gpu_s: what labelling cost, the serving model's looks at the sample included.
        class_histogram: how many labels are of each class; empty where the world does not count them.
        golden_gpu_s: what of ``gpu_s`` the golden model took; 0.0 where the world does not know.
        compared: where other weights serve than when labels were taken before, both on these.
    """

    t_us: int
    stream: StreamId
    window: int
    training_crops: int
    validation_crops: int
    serving_accuracy: float
    new_classes: bool
    gpu_s: float
    class_histogram: tuple[int, ...] = ()
    golden_gpu_s: float = 0.0
    compared: Compared | None = None


@dataclass(frozen=True, slots=True)
class ModelCached:
    """A model of a stream is kept from now on and can serve again (paper §6.5)."""

    t_us: int
    stream: StreamId
    model: CachedModel


@dataclass(frozen=True, slots=True)
class InferenceProfiled:
    """The inference profiler measured Λ on labelled bursts (paper §3.1).

    Attributes:
        options: Λ as measured.
        gpu_s: what it cost.
        golden_gpu_s: what of it the golden model took to label the burst; 0.0 where the world does not know.
    """

    t_us: int
    stream: StreamId
    window: int
    options: tuple[InferenceOption, ...]
    gpu_s: float
    golden_gpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ProfileReady:
    """The micro-profiler measured one family of γ (paper §4.3)."""

    t_us: int
    stream: StreamId
    window: int
    curve: FamilyCurve
    gpu_s: float


@dataclass(frozen=True, slots=True)
class RetrainProfiled:
    """Estimates of some γ that were not made from a learning curve, as recorded ones.

    They are taken as they come: nothing is fitted or corrected.
    """

    t_us: int
    stream: StreamId
    window: int
    options: tuple[RetrainOption, ...]
    gpu_s: float


@dataclass(frozen=True, slots=True)
class PreparationEnded:
    """Labels and profiles are all there, or the time allowed for them is up."""

    t_us: int
    window: int


@dataclass(frozen=True, slots=True)
class RetrainProgress:
    """A retraining finished an epoch. ``gpu_s`` is what it has used so far."""

    t_us: int
    stream: StreamId
    job: JobId
    epoch: int
    validation_accuracy: float
    gpu_s: float


@dataclass(frozen=True, slots=True)
class RetrainFinished:
    """A retraining finished its last epoch; its progress events came before this one."""

    t_us: int
    stream: StreamId
    job: JobId
    gpu_s: float


@dataclass(frozen=True, slots=True)
class RetrainFailed:
    """A retraining broke; its γ is not tried again in this window."""

    t_us: int
    stream: StreamId
    job: JobId
    reason: str


@dataclass(frozen=True, slots=True)
class MemoryShort:
    """A retraining or a micro-profile did not fit into its GPU's memory: not begun, or broken for want of it.

    It comes before the RetrainFailed of its job. What needs at least as much is set aside for the window.

    Attributes:
        what: that did not fit.
        reason: in one sentence.
        needed_bytes, free_bytes: as estimated and as the driver said; None where it was found out by trying.
    """

    t_us: int
    stream: StreamId
    window: int
    what: DidNotFit
    reason: str
    needed_bytes: int | None = None
    free_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class MemoryMeasured:
    """The most GPU memory that a retraining held at once.

    Attributes:
        peak_bytes: of its process, without what CUDA itself takes.
    """

    t_us: int
    stream: StreamId
    job: JobId
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class ModelSwapped:
    """Inference serves new weights.

    Attributes:
        validation_accuracy: of these weights, as their job reported it.
        stall_us: how long inference could not take a frame because of the swap.
    """

    t_us: int
    stream: StreamId
    version: ModelVersion
    job: JobId
    validation_accuracy: float
    stall_us: int


@dataclass(frozen=True, slots=True)
class RolledBack:
    """Inference serves weights again that served before.

    Attributes:
        version: their number from now on.
        of: their number when they served before.
        stall_us: how long inference could not take a frame because of it.
    """

    t_us: int
    stream: StreamId
    version: ModelVersion
    of: ModelVersion
    stall_us: int


@dataclass(frozen=True, slots=True)
class ShareMeasured:
    """What a worker really used since the last such event."""

    t_us: int
    stream: StreamId
    role: Role
    share_milli: int


@dataclass(frozen=True, slots=True)
class NeedMeasured:
    """The share that a λ would have used of late on all of its frames, by what those that it looked at took.

    A profile says what they take alone; beside other jobs they may take longer, and streets fill.
    """

    t_us: int
    stream: StreamId
    config: InferenceConfig
    share_milli: int


@dataclass(frozen=True, slots=True)
class FramesCounted:
    """What became of a stream's frames since the last such event.

    Attributes:
        window: in which they arrived; no event spans two.
        due: frames that λ intends to have analysed: those whose index is a multiple of its ``every``.
        analysed: frames that the model looked at.
    """

    t_us: int
    stream: StreamId
    window: int
    due: int
    analysed: int


@dataclass(frozen=True, slots=True)
class Warned:
    """A process of the run warns of something; each text is told once by each process.

    Attributes:
        source: name of the process, for people.
        text: one line, without anybody's password.
    """

    t_us: int
    source: str
    text: str


@dataclass(frozen=True, slots=True)
class GpuMeasured:
    """What the GPUs did in a window; never where there is none to be asked."""

    t_us: int
    window: int
    gpus: tuple[GpuUse, ...]


@dataclass(frozen=True, slots=True)
class ShareResized:
    """A job has gone to another share between two batches, or has ended and let go of its share.

    Attributes:
        holder: which job.
        epoch: number of the plan that it was done for.
        share_milli: what its handle says that it holds; can be less than it was granted.
        took_us: from when the job was asked until it was so.
        note: why it is not what it was granted; empty where it is.
    """

    t_us: int
    holder: ShareHolder
    epoch: int
    share_milli: int
    took_us: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class ShareOverdue:
    """A job has not let go of its share within its limit; its worker is ended and started again.

    Attributes:
        holder: which job.
        epoch: number of the newest plan.
        waited_us: since it was first asked.
    """

    t_us: int
    holder: ShareHolder
    epoch: int
    waited_us: int


@dataclass(frozen=True, slots=True)
class WorkerDied:
    """A worker of a stream is gone, with what was in it."""

    t_us: int
    stream: StreamId
    role: Role
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerBack:
    """A worker that had died runs again, with the last weights that served."""

    t_us: int
    stream: StreamId
    role: Role


@dataclass(frozen=True, slots=True)
class ProfilerBack:
    """The micro-profiler, which had died, has its models again."""

    t_us: int


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
    """From now on jobs of other servers hold so much of the GPUs here, all of them together."""

    t_us: int
    share_milli: int


Event = (
    StreamAdded
    | WindowClosed
    | WindowOpened
    | LabelsReady
    | InferenceProfiled
    | ProfileReady
    | RetrainProfiled
    | PreparationEnded
    | RetrainProgress
    | RetrainFinished
    | MemoryShort
    | RetrainFailed
    | MemoryMeasured
    | ModelSwapped
    | RolledBack
    | ModelCached
    | ShareMeasured
    | NeedMeasured
    | FramesCounted
    | Warned
    | GpuMeasured
    | ShareResized
    | ShareOverdue
    | WorkerDied
    | WorkerBack
    | ProfilerBack
    | StreamLost
    | StreamBack
    | StreamEnded
    | CapacityLent
)

# At one instant: what belongs to the window that ends comes first, then the border of the windows
# itself, then what belongs to the window that begins.
_ORDER: tuple[type[Event], ...] = (
    StreamAdded,
    WorkerBack,
    StreamBack,
    RetrainProgress,
    RetrainFinished,
    MemoryShort,
    RetrainFailed,
    MemoryMeasured,
    ModelSwapped,
    RolledBack,
    ModelCached,
    WorkerDied,
    StreamLost,
    StreamEnded,
    CapacityLent,
    ShareMeasured,
    NeedMeasured,
    FramesCounted,
    Warned,
    GpuMeasured,
    ShareResized,
    ShareOverdue,
    LabelsReady,
    InferenceProfiled,
    ProfileReady,
    RetrainProfiled,
    PreparationEnded,
    ProfilerBack,
    WindowClosed,
    WindowOpened,
)
_RANK = {kind: rank for rank, kind in enumerate(_ORDER)}


def in_order(events: Iterable[Event]) -> tuple[Event, ...]:
    """Events by time, then kind, then the order in which they were given (a stable sort)."""
    return tuple(sorted(events, key=lambda event: (event.t_us, _RANK[type(event)])))
