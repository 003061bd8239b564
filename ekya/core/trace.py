"""Trace: recorded accuracies and costs of a fleet's configurations, over which decisions can be simulated.

**Windows.** Window w retrains on labels of what arrived in w − 1, and the result serves from w on. So every
accuracy "in window w" exists in two kinds: on the validation part of the labels that are made in w, which
the loop receives, and on all objects that arrive in w, which is scored.

**The model that a window starts from** depends on earlier plans; training every γ from every model that could
serve would take as many trainings as there are plans. A trace therefore holds

- the accuracy in w of models that were trained in earlier windows, and of the base model (`RecordedStart`);
- each training from few of them (`RecordedTraining.started_from`);
- the accuracy in later windows of the epochs after which some γ ends (`Epoch.standings`);
- each of these accuracies also by parts of the window, since content changes within it, and a retraining
  begins to serve during it (`Standing.by_part`).

Approximation: a training from another model is assumed to end where the one from the nearest recorded model
ends, nearest by ``Origin.distance``. Each λ is assumed to lose the same part of every model's accuracy; that
of a λ of the golden detector does not depend on the model.
``start_of``, ``best_training`` and ``standing_in`` implement these rules.

A trace may be sparse: that of a single run contains only what was tried.
"""

from dataclasses import dataclass

from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.profile import Family, FamilyCost, FamilyCurve, Profiler, family_of
from ekya.core.speed import LINEAR, SpeedCurve
from ekya.core.units import StreamId
from ekya.core.view import InferenceOption

BASE_WINDOW = -1
"""The window in which the base model counts as trained."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Accuracy of one model in one window.

    Attributes:
        window: the window.
        validation_accuracy: in [0, 1], on the validation part of the labels made in it.
        accuracy: in [0, 1], on all objects that arrive in it, every frame analysed; None where not
            measured: ``validation_accuracy`` is used instead.
        by_part: that accuracy in consecutive equal parts of the window; empty where not measured: it is
            taken as constant.
    """

    window: int
    validation_accuracy: float
    accuracy: float | None
    by_part: tuple[float, ...] = ()

    @property
    def served_accuracy(self) -> float:
        """Accuracy that is scored while the model serves."""
        return self.validation_accuracy if self.accuracy is None else self.accuracy

    def served_in(self, part: int, parts: int) -> float:
        """Returns the accuracy scored in one of ``parts`` equal parts of the window."""
        return self.by_part[part * len(self.by_part) // parts] if self.by_part else self.served_accuracy


@dataclass(frozen=True, slots=True)
class Origin:
    """Last training of a model.

    Attributes:
        trained_in: window in which it was last trained; ``BASE_WINDOW``: never.
        family: family of the γ of that training; None where it was never trained or this is not recorded.
    """

    trained_in: int
    family: Family | None = None

    def distance_to(self, other: "Origin") -> tuple[int, bool]:
        """Returns a distance of two models: windows between their trainings, then whether families differ."""
        return abs(self.trained_in - other.trained_in), self.family != other.family

    def rank_by_distance(self, other: "Origin") -> tuple[int, bool, int]:
        """Returns a key that sorts models by distance, of two equally near ones the younger first."""
        return (*self.distance_to(other), -other.trained_in)


BASE = Origin(BASE_WINDOW)
"""Origin of the base model."""


@dataclass(frozen=True, slots=True)
class RecordedStart:
    """Accuracy of a model from which a window may start."""

    origin: Origin
    standing: Standing


@dataclass(frozen=True, slots=True)
class Epoch:
    """One epoch of a recorded training.

    Attributes:
        epoch: from 1.
        gpu_s: GPU-seconds at 100% of one GPU since the training began, preparation included.
        standings: accuracies in the window of the training first, then in later windows, rising; later ones
            may be missing.
    """

    epoch: int
    gpu_s: float
    standings: tuple[Standing, ...]


@dataclass(frozen=True, slots=True)
class RecordedTraining:
    """One training with all its epochs; valid for every γ of its family and part of the data.

    Attributes:
        family: all of γ except epochs and part of the data.
        data_fraction: part of the window's training labels, in (0, 1].
        started_from: origin of the model that was trained further.
        epochs: from 1, without a gap, at least one.
    """

    family: Family
    data_fraction: float
    started_from: Origin
    epochs: tuple[Epoch, ...]

    def covers_config(self, config: RetrainConfig) -> bool:
        """Returns whether this training is valid for γ and has enough epochs."""
        same = self.family == family_of(config) and self.data_fraction == config.data_fraction
        return same and config.epochs <= len(self.epochs)

    def standing_in(self, epoch: int, window: int) -> Standing | None:
        """Returns the accuracy in a window of the weights after an epoch.

        Where it was not recorded, returns that of the nearest recorded epoch (of two, the later); None
        without one.
        """
        known = [
            (abs(other.epoch - epoch), -other.epoch, standing)
            for other in self.epochs
            for standing in other.standings
            if standing.window == window
        ]
        return min(known, key=lambda item: item[:2])[2] if known else None


@dataclass(frozen=True, slots=True)
class Predicted:
    """A micro-profiler's estimate of a γ.

    Attributes:
        config: γ.
        accuracy: expected after the retraining, in [0, 1].
        gpu_s: expected GPU-seconds of the whole retraining.
        sd: the profiler's standard deviation of the accuracy, in traces of older versions; else None.
    """

    config: RetrainConfig
    accuracy: float
    gpu_s: float
    sd: float | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """One family of γ, micro-profiled in one window (paper §4.3).

    Attributes:
        family: the family.
        gpu_s: cost of the trial.
        curve: measured curve; None where only the estimates were recorded.
        predicted: estimates from the curve; empty where only the curve was recorded.
        started_from: origin of the model that was used.
        profiler: method by which it was tried; None where that was not recorded: it stands for every one.
    """

    family: Family
    gpu_s: float
    curve: FamilyCurve | None = None
    predicted: tuple[Predicted, ...] = ()
    started_from: Origin = BASE
    profiler: Profiler | None = None


@dataclass(frozen=True, slots=True)
class StreamWindow:
    """One stream in one window.

    Attributes:
        window: index of the window.
        class_histogram: arriving objects of each of the trace's classes; empty where unknown.
        training_crops, validation_crops: labelled for this window; 0 in window 0, which labels nothing.
        labelling_gpu_s: cost of labelling.
        inference_gpu_s: cost of profiling Λ.
        inference: every λ with its true values, never empty.
        inference_profiled: Λ as the inference profiler measures it, in window 0 as assumed by default;
            empty: equal to ``inference``.
        starts: at least one, with distinct origins.
        trainings: recorded trainings; none in window 0.
        trials: recorded trials.
        objects_by_part: number of scored objects in consecutive equal parts of the window; empty: equal
            numbers.
    """

    window: int
    class_histogram: tuple[int, ...]
    training_crops: int
    validation_crops: int
    labelling_gpu_s: float
    inference_gpu_s: float
    inference: tuple[InferenceOption, ...]
    inference_profiled: tuple[InferenceOption, ...]
    starts: tuple[RecordedStart, ...]
    trainings: tuple[RecordedTraining, ...]
    trials: tuple[Trial, ...]
    objects_by_part: tuple[int, ...] = ()

    @property
    def weights(self) -> tuple[float, ...]:
        """Weights of the window's equal parts in its accuracy; they add up to 1."""
        total = sum(self.objects_by_part)
        if total == 0:
            return (1.0,)
        return tuple(count / total for count in self.objects_by_part)

    def start_of(self, origin: Origin) -> Standing:
        """Returns the accuracy here of the recorded model nearest to that origin, of two the older."""
        nearest = min(
            self.starts, key=lambda start: (*origin.distance_to(start.origin), start.origin.trained_in)
        )
        return nearest.standing

    def best_training(self, config: RetrainConfig, origin: Origin) -> RecordedTraining | None:
        """Returns the recorded training of γ from the model nearest to that origin.

        None where none was recorded. Of two equally near ones, the one from the younger model.
        """
        fitting = [training for training in self.trainings if training.covers_config(config)]
        return min(fitting, key=lambda one: origin.rank_by_distance(one.started_from), default=None)

    def best_trial(self, family: Family, origin: Origin, profiler: Profiler) -> Trial | None:
        """Returns a family's trial on a model near that origin, chosen like trainings; None without one.

        Where the family was not tried by this method, the trials of the other one stand for it.
        """
        own = [trial for trial in self.trials if trial.family == family]
        fitting = [trial for trial in own if trial.profiler in (None, profiler)] or own
        return min(fitting, key=lambda one: origin.rank_by_distance(one.started_from), default=None)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A box from which a label was taken: its object is scored in no window.

    Attributes:
        frame: index in the stream.
        box: x0 y0 x1 y1 in pixels.
    """

    frame: int
    box: tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class StreamTrace:
    """One stream over all windows.

    Attributes:
        stream: id of the stream.
        fps: frames per second of the camera.
        windows: from 0, without a gap; other streams may have more.
        last_part: part of its last window after which the camera ends, in (0, 1].
        left_out: boxes excluded from its accuracies; a run that also excludes them is scored on the same
            objects. Empty where not recorded.
    """

    stream: StreamId
    fps: float
    windows: tuple[StreamWindow, ...]
    last_part: float = 1.0
    left_out: tuple[LeftOut, ...] = ()

    def ends_us(self, window_us: int) -> int:
        """Returns the time of the camera's last frame, for windows of this length."""
        return round((len(self.windows) - 1 + self.last_part) * window_us)


@dataclass(frozen=True, slots=True)
class Trace:
    """A fleet over all windows.

    Attributes:
        window_us: length of a window.
        gpu: device on which the GPU-seconds were measured, in words.
        classes: the fleet's classes, in the order of class histograms; empty where unknown.
        retrain_configs, inference_configs: Γ without ∅, and Λ; sorted.
        training_speed, inference_speed: speed of a job at a share of the GPU.
        streams: sorted by id.
        family_costs: costs of families that a run assumes before any measurement; empty where unknown.
        recorded: recording settings, in words; only a recording with the same settings can complete the
            trace. Empty where not recorded.
    """

    window_us: int
    gpu: str
    classes: tuple[str, ...]
    retrain_configs: tuple[RetrainConfig, ...]
    inference_configs: tuple[InferenceConfig, ...]
    streams: tuple[StreamTrace, ...]
    training_speed: SpeedCurve = LINEAR
    inference_speed: SpeedCurve = LINEAR
    family_costs: tuple[FamilyCost, ...] = ()
    recorded: str = ""

    @property
    def windows(self) -> int:
        """Number of windows of the longest stream; 0 without streams."""
        return max((len(stream.windows) for stream in self.streams), default=0)
