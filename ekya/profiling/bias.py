"""Correction of a lasting bias of estimates, from those that could be checked."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from ekya.core.profile import Family, family_of
from ekya.profiling.history import ProfileHistory


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


def bias_correction(history: ProfileHistory, shrink: float = 3.0) -> BiasCorrection:
    """Returns the median of achieved minus predicted gain, shrunk while there are few checks.

    Over all families the median of n checks is multiplied by n / (n + shrink). A family's own median of m
    checks then moves it by m / (m + shrink) of the way. So one lucky retraining changes little.
    """
    by_family: dict[Family, list[float]] = {}
    for o in history.observations:
        if o.predicted_gain is not None:
            by_family.setdefault(family_of(o.config), []).append(o.gain - o.predicted_gain)
    every = [error for errors in by_family.values() for error in errors]
    overall = median(every) * len(every) / (len(every) + shrink) if every else 0.0
    return BiasCorrection(
        overall,
        {
            family: overall + (median(errors) - overall) * len(errors) / (len(errors) + shrink)
            for family, errors in by_family.items()
        },
    )
