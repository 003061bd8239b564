"""Weights that are not trained on this server now (paper §6.5), and comparisons of weights.

Also what a service shows of a comparison: what the weights before and after a retraining answered.
"""

from dataclasses import dataclass

from ekya.core.configs import RetrainConfig
from ekya.core.units import StreamId


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Arrival of a γ's weights that need no share here.

    Attributes:
        arrives_us: run time of their arrival.
        trained_in: the window on whose labels they were trained; None for the open window.
    """

    arrives_us: int
    trained_in: int | None = None


@dataclass(frozen=True, slots=True)
class CachedModel:
    """Cached model of a stream.

    Attributes:
        config: γ of its training.
        trained_in: the window on whose labels it was trained.
        histogram: number of these labels of each of the fleet's classes.
    """

    config: RetrainConfig
    trained_in: int
    histogram: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SceneOf:
    """A stream, and the stream time since which it has shown its scene."""

    stream: StreamId
    since_us: int


@dataclass(frozen=True, slots=True)
class PooledLabels:
    """Labels of the same scene that a stream learns from beside its newest ones.

    Attributes:
        streams: whose they are; the stream itself, if some are earlier ones of its own.
        labels: their number.
    """

    streams: tuple[StreamId, ...]
    labels: int


@dataclass(frozen=True, slots=True)
class LabelBudget:
    """How much of a stream's window is labelled.

    Attributes:
        labels: number of objects; of frames where edge models detect.
        gpu_s: GPU-seconds of the golden model; None for no limit.
    """

    labels: int
    gpu_s: float | None = None


@dataclass(frozen=True, slots=True)
class Compared:
    """Accuracies of new and old weights on the same labels, none of which they were trained on.

    Attributes:
        new: accuracy of the weights that served in the labelled window.
        old: accuracy of the weights that served when labels were taken before.
        objects: number of distinct objects. In crops there is one of each; in frames, boxes that stay in
            place from one to the next are one object.
    """

    new: float
    old: float
    objects: int


@dataclass(frozen=True, slots=True, eq=False)
class RemoteCheckpoint:
    """Weights that another server has trained.

    Attributes:
        weights: a checkpoint.
        accuracy: on the validation crops.
        epoch: after which they were taken.
    """

    weights: bytes
    accuracy: float
    epoch: int


@dataclass(frozen=True, slots=True)
class Mistake:
    """An object of the validation labels that the retrained model got wrong.

    Attributes:
        label: its class; empty where the golden model saw nothing.
        answer: class that the model gave it; empty where it found nothing.
        confidence: of the answer, in [0, 1].
    """

    label: str
    answer: str
    confidence: float


@dataclass(frozen=True, slots=True)
class Validation:
    """Confusion of two models on the validation labels of a retraining, and mistakes of the later one.

    Objects count alike here; a validation accuracy weights them by the class mix of the window.

    Attributes:
        classes: those that occur, in the order of rows and columns; empty for nothing, which is no object of
            the golden model's, or none that a detector found.
        before: number of objects by class and by answer of the model that served when the retraining began.
        after: the same of the best epoch.
        mistakes: some of those of the best epoch, the most confident first.
    """

    classes: tuple[str, ...]
    before: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...]
    mistakes: tuple[Mistake, ...]
