"""Weights that are not trained on this server now (paper §6.5), and comparisons of two sets of weights."""

from dataclasses import dataclass

from ekya.core.configs import RetrainConfig


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
class Compared:
    """Accuracies of new and old weights on the same labels, none of which they were trained on.

    Attributes:
        new: accuracy of the weights that served in the labelled window; of those of another stream, where
            they are offered.
        old: accuracy of the weights that served when labels were taken before; of the base model beside an
            offer.
        objects: number of distinct objects. In crops there is one of each; in frames, boxes that stay in
            place from one to the next are one object.
    """

    new: float
    old: float
    objects: int
