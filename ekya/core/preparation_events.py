"""Events of what retraining is prepared by: drifts, labels, profiles, and audits."""

from dataclasses import dataclass

from ekya.core.profile import FamilyCurve
from ekya.core.units import StreamId
from ekya.core.view import InferenceOption, RetrainOption
from ekya.core.weights import Compared, PooledLabels


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
        accuracy_on_all: of the serving model on all labels, with less chance in it than in the few that
            validate; None where it may have learnt from them, or the world does not measure it.
        pooled: other labels of the same scene that retrainings learn from as well; None without any.
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
    accuracy_on_all: float | None = None
    pooled: PooledLabels | None = None

    @property
    def of_new_scene(self) -> bool:
        """True if the sample shows a scene that labels before did not, or more of it."""
        return self.since_us is not None


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
    """The micro-profiler measured one family of γ (paper §4.3)."""

    t_us: int
    stream: StreamId
    window: int
    curve: FamilyCurve
    gpu_s: float


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
class DriftDetected:
    """A stream's pictures have changed since its weights were validated.

    Attributes:
        since_us: stream time from which on frames show the new scene.
        reason: the evidence, in one sentence.
    """

    t_us: int
    stream: StreamId
    window: int
    since_us: int
    reason: str


@dataclass(frozen=True, slots=True)
class MoreLabelsDue:
    """A scene that was labelled as soon as it was new has now shown enough objects for better labels."""

    t_us: int
    stream: StreamId
    window: int


@dataclass(frozen=True, slots=True)
class ProfilerDown:
    """The micro-profiler is loading, as a run begins or after its death: nothing is labelled then."""

    t_us: int


@dataclass(frozen=True, slots=True)
class ProfilerBack:
    """The micro-profiler has loaded its models."""

    t_us: int


@dataclass(frozen=True, slots=True)
class AccuracyAudited:
    """The answers of a stream were compared with the golden model on frames that were drawn at random.

    The frames were drawn from all that had arrived since the audit before, each with the same probability.

    Attributes:
        window: in which they were compared.
        arrived: number of frames that they were drawn from.
        correct, counted: of each of them, the parts that are right, and those that count, as in scores:
            objects of a stream that classifies; objects and boxes of one that detects.
        gpu_s: cost.
    """

    t_us: int
    stream: StreamId
    window: int
    arrived: int
    correct: tuple[int, ...]
    counted: tuple[int, ...]
    gpu_s: float
