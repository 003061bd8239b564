"""Weights that are not trained on the GPUs here: in the cloud now, or here before (paper §6.5)."""

from dataclasses import dataclass

from ekya.core.configs import RetrainConfig


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """How the weights of a γ come without a share.

    Attributes:
        arrives_us: run time at which they are here.
        trained_in: the window on whose labels they were trained; None is the window that is open.
    """

    arrives_us: int
    trained_in: int | None = None


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model of a stream that was kept.

    Attributes:
        config: γ that it was trained with.
        trained_in: the window on whose labels.
        histogram: how many of them were of each of the fleet's classes.
    """

    config: RetrainConfig
    trained_in: int
    histogram: tuple[int, ...]
