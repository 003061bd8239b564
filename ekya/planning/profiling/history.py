"""Results of γ in past windows, and the correction of a lasting bias of estimates by them."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from ekya.core.configs import RetrainConfig
from ekya.core.profile import Family, family_of

MEMORY_WINDOWS = 6
"""Number of latest windows whose observations are kept, since scenes change."""

SHRINK = 3.0
"""Checks of estimates at which half of their median is believed."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One γ in one past window.

    Attributes:
        window: index of the window.
        config: γ.
        gain: accuracy after minus before: measured where it was retrained, else as profiled.
        gpu_s: GPU-seconds at 100% of one GPU that it took, or was profiled to take.
        predicted_gain: prediction of the micro-profile, where the gain was measured; else None.
    """

    window: int
    config: RetrainConfig
    gain: float
    gpu_s: float
    predicted_gain: float | None = None


@dataclass(frozen=True, slots=True)
class ProfileHistory:
    """Past observations of one stream, or of several that share them.

    Attributes:
        observations: in the order in which they came.
    """

    observations: tuple[Observation, ...] = ()

    def with_observation(self, observation: Observation) -> "ProfileHistory":
        """Returns this history with one more observation, and without those that are too old.

        It replaces an earlier one of the same γ and window: what was measured replaces what was profiled.
        """
        same = (observation.window, observation.config)
        kept = (*(o for o in self.observations if (o.window, o.config) != same), observation)
        newest = max(o.window for o in kept)
        return ProfileHistory(tuple(o for o in kept if o.window > newest - MEMORY_WINDOWS))


@dataclass(frozen=True, slots=True)
class BiasCorrection:
    """Corrections of estimates, from those that could be checked.

    Attributes:
        overall: correction of the accuracy after retraining for a family without a history.
        by_family: correction of families that have one.
    """

    overall: float
    by_family: Mapping[Family, float]

    def of(self, family: Family) -> float:
        """Returns the correction to be added to an estimated accuracy of this family."""
        return self.by_family.get(family, self.overall)


def bias_correction(history: ProfileHistory) -> BiasCorrection:
    """Returns the median of achieved minus predicted gain, shrunk while there are few checks.

    Over all families the median of n checks is multiplied by n / (n + SHRINK). A family's own median of m
    checks then moves it by m / (m + SHRINK) of the way. So one lucky retraining changes little.
    """
    by_family: dict[Family, list[float]] = {}
    for o in history.observations:
        if o.predicted_gain is not None:
            by_family.setdefault(family_of(o.config), []).append(o.gain - o.predicted_gain)
    every = [error for errors in by_family.values() for error in errors]
    overall = median(every) * len(every) / (len(every) + SHRINK) if every else 0.0
    return BiasCorrection(
        overall,
        {
            family: overall + (median(errors) - overall) * len(errors) / (len(errors) + SHRINK)
            for family, errors in by_family.items()
        },
    )
