"""Events: the loop's only source of information, applied in the order of `in_order`."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import get_args

from ekya.core.audits import AccuracyAudited
from ekya.core.configs import InferenceConfig
from ekya.core.gpus import DidNotFit, GpuUse
from ekya.core.profile import FamilyCurve
from ekya.core.requests import Request
from ekya.core.shares import ShareHolder
from ekya.core.units import JobId, ModelVersion, StreamId
from ekya.core.view import InferenceOption, RetrainOption
from ekya.core.weights import CachedModel, Compared, KeptModel, PooledLabels, Probe


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
class ZooOpened:
    """The zoo holds these models of earlier runs, the least recently used first."""

    t_us: int
    models: tuple[KeptModel, ...]


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
class LabelsReady:
    """The golden model has labelled a stream's sample of the window before (paper §4.3), or of the open one.

    Attributes:
        training_crops, validation_crops: labelled crops in each part; frames of a stream that detects.
        serving_accuracy: validation accuracy of the serving model; of its predecessor, where the shadow gate
            rolls back to that.
        new_classes: the sample contains a class that the serving model does not know.
        gpu_s: cost of labelling, including the serving model's forward passes on the sample.
        class_histogram: number of labels of each class; empty where the world does not count them.
        golden_gpu_s: the golden model's part of ``gpu_s``; 0.0 where the world does not measure it.
        compared: comparison on these labels, where other weights serve than when labels were taken before.
        golden_calls: pictures that the golden model analysed for the labels; 0 where the world does not
            count them.
        objects: objects in the labelled frames of a stream that detects; None where crops are labelled.
        since_us: stream time from which on the sample was taken, where it is of the open window.
        picture: description of the frames of the sample, in grey levels; empty without a zoo.
        probe: of a later dose, what it says of the serving model; None for other labels.
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
    golden_calls: int = 0
    objects: int | None = None
    since_us: int | None = None
    picture: tuple[int, ...] = ()
    probe: Probe | None = None

    @property
    def of_new_scene(self) -> bool:
        """True if the sample shows a scene that labels before did not, or more of it."""
        return self.since_us is not None and (self.probe is None or self.probe.shows_drift)


@dataclass(frozen=True, slots=True)
class ModelOffered:
    """Of the models that were tried on a stream's labels, this does best.

    They are the zoo's; without a zoo those of other streams, which only a stream that still serves the base
    model tries.

    Attributes:
        of, version: the stream of which it was retrained, and which of its weights.
        compared: on these labels; its ``new`` are the offered weights, its ``old`` those that serve.
        validation_accuracy: of the offered weights on the validation part.
        gpu_s: cost of trying all of them.
        kept: its number in the zoo; None for one that another stream serves.
        expected: of kept weights, both accuracies with what was known of them before these labels.
    """

    t_us: int
    stream: StreamId
    window: int
    of: StreamId
    version: ModelVersion
    compared: Compared
    validation_accuracy: float
    gpu_s: float
    kept: int | None = None
    expected: Compared | None = None


@dataclass(frozen=True, slots=True)
class ModelCached:
    """A model of a stream is now cached and can serve again (paper §6.5)."""

    t_us: int
    stream: StreamId
    model: CachedModel


@dataclass(frozen=True, slots=True)
class InferenceProfiled:
    """The inference profiler measured Λ on labelled bursts (paper §3.1).

    Attributes:
        options: Λ as measured.
        gpu_s: cost of profiling.
        golden_gpu_s: the golden model's part, for labelling the burst; 0.0 where the world does not measure
            it.
        golden_calls: pictures that the golden model analysed; 0 where the world does not count them.
    """

    t_us: int
    stream: StreamId
    window: int
    options: tuple[InferenceOption, ...]
    gpu_s: float
    golden_gpu_s: float = 0.0
    golden_calls: int = 0


@dataclass(frozen=True, slots=True)
class ProfileReady:
    """The micro-profiler measured one family of γ (paper §4.3).

    Attributes:
        pooled: other labels of the same scene that it was measured with, after it was without.
    """

    t_us: int
    stream: StreamId
    window: int
    curve: FamilyCurve
    gpu_s: float
    pooled: PooledLabels | None = None


@dataclass(frozen=True, slots=True)
class RetrainProfiled:
    """Estimates of some γ that do not come from a learning curve, such as recorded ones.

    They are used unchanged: nothing is fitted or corrected.
    """

    t_us: int
    stream: StreamId
    window: int
    options: tuple[RetrainOption, ...]
    gpu_s: float


@dataclass(frozen=True, slots=True)
class PreparationEnded:
    """Labels and profiles are complete, or their time is up.

    Attributes:
        round: of the preparation, as in its command.
    """

    t_us: int
    window: int
    round: int = 0


@dataclass(frozen=True, slots=True)
class RetrainProgress:
    """A retraining finished an epoch. ``gpu_s`` is its use so far."""

    t_us: int
    stream: StreamId
    job: JobId
    epoch: int
    validation_accuracy: float
    gpu_s: float


@dataclass(frozen=True, slots=True)
class RetrainFinished:
    """A retraining finished its last epoch; its progress events precede this one."""

    t_us: int
    stream: StreamId
    job: JobId
    gpu_s: float


@dataclass(frozen=True, slots=True)
class RetrainFailed:
    """A retraining failed; its γ is not tried again in this window."""

    t_us: int
    stream: StreamId
    job: JobId
    reason: str


@dataclass(frozen=True, slots=True)
class MemoryShort:
    """A retraining or micro-profile did not fit into its GPU's memory: it was not started, or failed.

    Precedes the RetrainFailed of its job. γ that need at least as much are excluded for the window.

    Attributes:
        what: γ or micro-profile that did not fit.
        reason: in one sentence.
        needed_bytes, free_bytes: estimated, and reported by the driver; None where an attempt failed.
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
    """Peak GPU memory of a retraining.

    Attributes:
        peak_bytes: of its process, without CUDA's own memory.
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
        stall_us: time for which the hot swap kept inference from taking a frame.
    """

    t_us: int
    stream: StreamId
    version: ModelVersion
    job: JobId
    validation_accuracy: float
    stall_us: int


@dataclass(frozen=True, slots=True)
class ModelAdopted:
    """Inference serves the weights of another stream, or kept ones.

    Attributes:
        version: their number here.
        of, of_version: the stream of which they were retrained, and their number there.
        validation_accuracy: of these weights on the labels here.
        stall_us: time for which the hot swap kept inference from taking a frame.
        kept: their number in the zoo; None for weights that another stream serves.
    """

    t_us: int
    stream: StreamId
    version: ModelVersion
    of: StreamId
    of_version: ModelVersion
    validation_accuracy: float
    stall_us: int
    kept: int | None = None


@dataclass(frozen=True, slots=True)
class AdoptionFailed:
    """Offered weights that were to serve are gone or damaged; those that serve go on."""

    t_us: int
    stream: StreamId


@dataclass(frozen=True, slots=True)
class RolledBack:
    """Inference serves earlier weights again.

    Attributes:
        version: their number from now on.
        of: their number when they served before.
        stall_us: time for which the hot swap kept inference from taking a frame.
    """

    t_us: int
    stream: StreamId
    version: ModelVersion
    of: ModelVersion
    stall_us: int


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
    """

    t_us: int
    stream: StreamId
    window: int
    due: int
    analysed: int


@dataclass(frozen=True, slots=True)
class DriftDetected:
    """A stream's pictures have changed since its weights were validated.

    Attributes:
        since_us: stream time from which on frames show the new scene.
        reason: the evidence, in one sentence.
        picture: description of the newest frames, in grey levels; empty without a zoo.
    """

    t_us: int
    stream: StreamId
    window: int
    since_us: int
    reason: str
    picture: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class MoreLabelsDue:
    """A scene that was labelled as soon as it was new has now shown enough objects for better labels."""

    t_us: int
    stream: StreamId
    window: int


@dataclass(frozen=True, slots=True)
class DoseDue:
    """Streams may be labelled again with the next part of the window's labels.

    Attributes:
        dose: number within the window; that of the window's own preparation is 0.
    """

    t_us: int
    window: int
    dose: int


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
    """A worker of a stream has died; its memory is lost."""

    t_us: int
    stream: StreamId
    role: Role
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerBack:
    """A dead worker runs again, with the last weights that served."""

    t_us: int
    stream: StreamId
    role: Role


@dataclass(frozen=True, slots=True)
class StreamReadmitted:
    """A stream that was set aside is given another try: its workers are started again."""

    t_us: int
    stream: StreamId


@dataclass(frozen=True, slots=True)
class ProfilerBack:
    """The micro-profiler, which had died, has loaded its models again."""

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
    """Jobs of other servers hold this share of the GPUs here from now on, in total."""

    t_us: int
    share_milli: int


Event = (
    ZooOpened
    | StreamAdded
    | StreamReadmitted
    | WorkerBack
    | StreamBack
    | RetrainProgress
    | RetrainFinished
    | MemoryShort
    | RetrainFailed
    | MemoryMeasured
    | ModelSwapped
    | ModelAdopted
    | AdoptionFailed
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
    | DoseDue
    | Warned
    | GpuMeasured
    | ShareResized
    | ShareOverdue
    | LabelsReady
    | ModelOffered
    | InferenceProfiled
    | ProfileReady
    | RetrainProfiled
    | AccuracyAudited
    | PreparationEnded
    | ProfilerBack
    | WindowClosed
    | WindowOpened
)
"""All events, in the order in which those of one instant are applied: first events of the window that ends,
then the border of the windows itself, then events of the window that begins."""

Swapped = ModelSwapped | ModelAdopted | RolledBack
"""Events of a hot swap, after which other weights serve."""

_RANK = {kind: rank for rank, kind in enumerate(get_args(Event))}


def in_order(events: Iterable[Event]) -> tuple[Event, ...]:
    """Returns events sorted by time, then type; the sort is stable."""
    return tuple(sorted(events, key=lambda event: (event.t_us, _RANK[type(event)])))
