"""A trace: everything that a fleet's configurations really gave, so that decisions can be played over it.

**Windows.** As everywhere, window w retrains on labels of what arrived in w − 1, and what it trains serves
from w on. So every accuracy "in window w" comes in two kinds: on the validation part of the labels that are
made in w, which is what the loop is told, and on all objects that arrive in w, which is what counts.

**What a window starts from** depends on earlier plans, and to train every γ from every model that could serve
would take as many trainings as there are plans. A trace therefore holds

- the accuracy in w of models that were trained in windows before, and of the base model (`Start`);
- each training from few of them (`Training.started_from`);
- the accuracy in later windows of the epochs after which some γ ends (`Epoch.standings`);
- each of these accuracies by parts of the window too, for what is seen changes within it, and a retraining
  serves from its middle on (`Standing.by_part`).

The approximation: a training that starts from another model is taken to end where the one from the nearest
recorded model ends, nearest by ``Origin.distance``. λ are taken to lose the same part of every model's
accuracy. ``start_of``, ``best_training`` and ``standing_in`` are these rules.

A trace may be sparse, as that of a single run is: it then knows only what was tried.
"""

from dataclasses import dataclass

from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.ids import StreamId
from ekya.core.profile import Family, FamilyCost, FamilyCurve, family_of
from ekya.core.speed import LINEAR, SpeedCurve
from ekya.core.view import InferenceOption

BASE_WINDOW = -1
"""The window in which the base model counts as trained."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How well one model does in one window.

    Attributes:
        window: the window.
        validation_accuracy: in [0, 1], on the validation part of the labels made in it.
        accuracy: in [0, 1], on all objects that arrive in it, every frame analysed; None where nobody
            measured it, and the validation part has to stand for it.
        by_part: that accuracy in equal parts of the window, one after the other; empty where nobody
            measured it so, and it is the same throughout.
    """

    window: int
    validation_accuracy: float
    accuracy: float | None
    by_part: tuple[float, ...] = ()

    @property
    def served_accuracy(self) -> float:
        """What counts while the model serves."""
        return self.validation_accuracy if self.accuracy is None else self.accuracy

    def served_in(self, part: int, parts: int) -> float:
        """What counts while the model serves in one of so many equal parts of the window."""
        return self.by_part[part * len(self.by_part) // parts] if self.by_part else self.served_accuracy


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a model comes from.

    Attributes:
        trained_in: window in which it was last trained; ``BASE_WINDOW``: never.
        family: of the γ that it was last trained with; None where it never was, or nobody noted it.
    """

    trained_in: int
    family: Family | None = None

    def distance(self, other: "Origin") -> tuple[int, bool]:
        """How unlike two models are: first by the windows between their trainings, then by how they went."""
        return abs(self.trained_in - other.trained_in), self.family != other.family


BASE = Origin(BASE_WINDOW)
"""Of the base model."""


@dataclass(frozen=True, slots=True)
class Start:
    """How a model does in a window that it may start from."""

    origin: Origin
    standing: Standing


@dataclass(frozen=True, slots=True)
class Epoch:
    """One epoch of a recorded training.

    Attributes:
        epoch: from 1.
        gpu_s: GPU-seconds at 100% of one GPU since the training began, preparation included.
        standings: in the window of the training first, then in later windows, rising; later ones may be
            missing.
    """

    epoch: int
    gpu_s: float
    standings: tuple[Standing, ...]


@dataclass(frozen=True, slots=True)
class Training:
    """One training with all its epochs; it serves every γ of its family and part of the data.

    Attributes:
        family: all of γ but epochs and part of the data.
        data_fraction: part of the window's training labels, in (0, 1].
        started_from: where the model comes from that it started from.
        epochs: from 1, without a gap, at least one.
    """

    family: Family
    data_fraction: float
    started_from: Origin
    epochs: tuple[Epoch, ...]

    def has(self, config: RetrainConfig) -> bool:
        """Whether γ is one of those that this training serves, and went on long enough."""
        same = self.family == family_of(config) and self.data_fraction == config.data_fraction
        return same and config.epochs <= len(self.epochs)

    def standing_in(self, epoch: int, window: int) -> Standing | None:
        """How the weights after an epoch do in a window.

        Where that was not recorded it is that of the nearest epoch (of two, the later) of which it was;
        None where it was recorded of none.
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
    """What a micro-profiler said of a γ.

    Attributes:
        config: γ.
        accuracy: expected after the retraining, in [0, 1].
        gpu_s: expected GPU-seconds of the whole retraining.
        sd: standard deviation that the profiler itself gave the accuracy; None where it gave none.
    """

    config: RetrainConfig
    accuracy: float
    gpu_s: float
    sd: float | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """One family of γ, micro-profiled in one window (paper §4.3).

    Attributes:
        family: which.
        gpu_s: what the trial cost.
        curve: what it measured; None where only what was made of it is known.
        predicted: what was made of it; empty where only the curve is known.
        started_from: where the model comes from that it was tried on.
    """

    family: Family
    gpu_s: float
    curve: FamilyCurve | None = None
    predicted: tuple[Predicted, ...] = ()
    started_from: Origin = BASE


@dataclass(frozen=True, slots=True)
class StreamWindow:
    """One stream in one window.

    Attributes:
        window: its index.
        class_histogram: objects of each of the trace's classes that arrive in it; empty where unknown.
        training_crops, validation_crops: labelled for this window; 0 in window 0, which labels nothing.
        labelling_gpu_s: what labelling costs.
        inference_gpu_s: what profiling Λ costs.
        inference: every λ as it really is, never empty.
        inference_profiled: Λ as the inference profiler measures it, in window 0 as it is guessed; empty: as
            it is.
        starts: at least one, each with another origin.
        trainings: recorded ones; none in window 0.
        trials: recorded ones.
        objects_by_part: how many objects count in equal parts of the window, one after the other; empty:
            as many in each.
    """

    window: int
    class_histogram: tuple[int, ...]
    training_crops: int
    validation_crops: int
    labelling_gpu_s: float
    inference_gpu_s: float
    inference: tuple[InferenceOption, ...]
    inference_profiled: tuple[InferenceOption, ...]
    starts: tuple[Start, ...]
    trainings: tuple[Training, ...]
    trials: tuple[Trial, ...]
    objects_by_part: tuple[int, ...] = ()

    @property
    def weights(self) -> tuple[float, ...]:
        """Of equal parts of the window in its accuracy; they add up to 1."""
        total = sum(self.objects_by_part)
        if total == 0:
            return (1.0,)
        return tuple(count / total for count in self.objects_by_part)

    def start_of(self, origin: Origin) -> Standing:
        """How the model of that origin does here; the nearest recorded one, of two the older."""
        nearest = min(
            self.starts, key=lambda start: (*origin.distance(start.origin), start.origin.trained_in)
        )
        return nearest.standing

    def best_training(self, config: RetrainConfig, origin: Origin) -> Training | None:
        """The training that tells what γ gives from a model of that origin.

        None where none was recorded. Of two that started equally near, the one from the younger model.
        """
        fitting = [training for training in self.trainings if training.has(config)]
        return min(
            fitting,
            key=lambda training: (
                *origin.distance(training.started_from),
                -training.started_from.trained_in,
            ),
            default=None,
        )

    def best_trial(self, family: Family, origin: Origin) -> Trial | None:
        """The trial of a family on a model of that origin, chosen as trainings are; None without one."""
        fitting = [trial for trial in self.trials if trial.family == family]
        return min(
            fitting,
            key=lambda trial: (*origin.distance(trial.started_from), -trial.started_from.trained_in),
            default=None,
        )


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A box that a label was taken from: its object counts in no window.

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
        stream: whose.
        fps: frames a second of the camera.
        windows: from 0, without a gap; other streams may have more.
        last_part: part of its last window after which the camera ends, in (0, 1].
        left_out: what its accuracies do not count; a run is scored on the same objects if it leaves them out
            too. Empty where nobody noted it.
    """

    stream: StreamId
    fps: float
    windows: tuple[StreamWindow, ...]
    last_part: float = 1.0
    left_out: tuple[LeftOut, ...] = ()

    def ends_us(self, window_us: int) -> int:
        """When the camera has given its last frame, where windows are so long."""
        return round((len(self.windows) - 1 + self.last_part) * window_us)


@dataclass(frozen=True, slots=True)
class Trace:
    """A fleet over all windows.

    Attributes:
        window_us: length of a window.
        gpu: what the GPU-seconds were measured on, in words.
        classes: the fleet's, as class histograms count them; empty where unknown.
        retrain_configs, inference_configs: Γ without ∅, and Λ; sorted.
        training_speed, inference_speed: speed of a job at a share of the GPU.
        streams: sorted by id.
        family_costs: what a run is told of them before anything is measured; empty where unknown.
        recorded: how, in words; only a recording that is made alike completes it. Empty where nobody says.
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
        """How many windows the longest stream has; 0 without streams."""
        return max((len(stream.windows) for stream in self.streams), default=0)
