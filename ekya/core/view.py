"""Input of a scheduler: an immutable snapshot of one moment in a window (paper §4.1)."""

from dataclasses import dataclass

from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.plan import Phase
from ekya.core.speed import LINEAR, SpeedCurve
from ekya.core.units import JobId, StreamId
from ekya.core.weights import CachedModel, Elsewhere


@dataclass(frozen=True, slots=True)
class RetrainOption:
    """One γ with its expected accuracy and cost (the paper's profile).

    Attributes:
        config: γ.
        accuracy_after: accuracy in [0, 1] of the retrained model when every frame is analysed.
        gpu_s: remaining GPU-seconds at 100% of one GPU.
        early_part: mean part of the gain, in [0, 1), that checkpoints serve during the retraining (paper §5)
            at a constant share; 0 where nothing serves before the end. In an estimate outside a view, the
            mean part of the gain that the model in training has.
    """

    config: RetrainConfig
    accuracy_after: float
    gpu_s: float
    early_part: float = 0.0


@dataclass(frozen=True, slots=True)
class InferenceOption:
    """One λ with its relative accuracy and cost.

    Attributes:
        config: λ.
        relative_accuracy: accuracy as a part of ``full_accuracy``, in [0, 1].
        share_needed_milli: the share that keeps up with the camera.
        age_us: largest age of a result that is still used, where λ keeps up.
        ample_milli: the share that keeps up with crowded frames too, where ``share_needed_milli`` is less
            than that, else 0; it is given out last.
    """

    config: InferenceConfig
    relative_accuracy: float
    share_needed_milli: int
    age_us: int = 0
    ample_milli: int = 0

    def full_accuracy(self, model_accuracy: float) -> float:
        """Returns the accuracy of which ``relative_accuracy`` is a part.

        It is that of the edge model, every frame analysed by the most demanding λ. The golden detector is
        right by definition, whatever the edge model knows.
        """
        return 1.0 if self.config.by_golden else model_accuracy

    def accuracy_with(self, model_accuracy: float) -> float:
        """Returns the accuracy of the answers where λ keeps up, with an edge model of this accuracy."""
        return self.full_accuracy(model_accuracy) * self.relative_accuracy


@dataclass(frozen=True, slots=True)
class RunningRetraining:
    """A retraining in progress: its γ is fixed (paper §5), its share is not.

    With ``elsewhere`` it needs no share, and its weights arrive at that time.
    """

    job: JobId
    option: RetrainOption
    share_milli: int
    elsewhere: Elsewhere | None = None


@dataclass(frozen=True, slots=True)
class StreamView:
    """One stream as the scheduler sees it.

    Attributes:
        stream: id of the stream.
        accuracy: estimated accuracy in [0, 1] of the model that serves, every frame analysed.
        retrain_options: Γ without ∅; empty where the stream cannot be retrained (again) now.
        inference_options: Λ, never empty.
        running: the retraining in progress, or None. While it is set, retrain_options is empty.
        weight: weight of the stream in the mean, above 0.
        histogram: number of the window's labels of each class; empty where unknown.
        cached: cached models that could serve now; empty during preparation and after or during a retraining.
        max_age_us: results must not get older than this (a latency limit); None allows any age.
    """

    stream: StreamId
    accuracy: float
    retrain_options: tuple[RetrainOption, ...]
    inference_options: tuple[InferenceOption, ...]
    running: RunningRetraining | None = None
    weight: float = 1.0
    max_age_us: int | None = None
    histogram: tuple[int, ...] = ()
    cached: tuple[CachedModel, ...] = ()


@dataclass(frozen=True, slots=True)
class WindowView:
    """One moment of a window, as passed to ``Scheduler.plan``.

    Attributes:
        now_us, window_end_us: run time.
        capacity_milli: share that may be given out now, over all GPUs.
        quantum_milli: δ, the smallest unit of a share; every granted share is a multiple of it.
        steal_milli: Δ, the share that the thief steals per step (paper Algorithm 1), a multiple of δ.
        min_accuracy: a_MIN (paper §4.2).
        streams: sorted by stream id.
        training_speed, inference_speed: speed of a job at a share.
        after_us: time after the window's end for which an accuracy reached in it still counts, until the next
            window's retrainings are done; 0 where the objective ends with the window, as in the paper.
        seed: for randomised schedulers; the same view gives the same plan.
        previous: the phases of the last plan, whose first is being carried out; they may not fit this view
            any more.
    """

    now_us: int
    window_end_us: int
    capacity_milli: int
    quantum_milli: int
    steal_milli: int
    min_accuracy: float
    streams: tuple[StreamView, ...]
    training_speed: SpeedCurve
    seed: int = 0
    previous: tuple[Phase, ...] = ()
    inference_speed: SpeedCurve = LINEAR
    after_us: int = 0
