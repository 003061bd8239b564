"""From measured family curves to the options a scheduler chooses from (paper §4.3)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from ekya.core.configs import RetrainConfig
from ekya.core.profile import Family, FamilyCurve, family_of
from ekya.core.view import RetrainOption
from ekya.profiling.curve import DEFAULT_LIMITS, FitLimits, fit_mixture
from ekya.profiling.history import ProfileHistory

EMPTY_HISTORY = ProfileHistory()

DATA_EXPONENT = 0.35
"""How fast the error falls with the number of labels: error ~ labels^-0.35, as learning curves of deep
networks do at their steepest. A curve knows how often crops were seen, and not how many different ones
there were: without this, half of the labels seen twice would be as good as all of them."""


@dataclass(frozen=True, slots=True)
class BiasCorrection:
    """What estimates were off by, on average, when they could be checked.

    Attributes:
        overall: correction of the accuracy after retraining for a family without a history.
        by_family: correction of families that have one.
    """

    overall: float
    by_family: Mapping[Family, float]

    def of(self, family: Family) -> float:
        """To be added to an estimated accuracy of this family."""
        return self.by_family.get(family, self.overall)


def bias_correction(history: ProfileHistory, shrink: float = 3.0) -> BiasCorrection:
    """Median of achieved minus predicted gain, shrunk while there is little to go by.

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


def options(
    curves: Iterable[FamilyCurve],
    configs: Iterable[RetrainConfig],
    training_crops: int,
    *,
    validation_crops: int | None = None,
    history: ProfileHistory = EMPTY_HISTORY,
    limits: FitLimits = DEFAULT_LIMITS,
) -> tuple[RetrainOption, ...]:
    """What each γ would give on the whole training part; γ whose family was not profiled are left out.

    GPU-seconds are the measured ones for one epoch on the subset, scaled by crops and epochs; the
    preparation is scaled by crops. The accuracy is the family's curve at the crops that γ sees, with
    the error that γ's part of the labels leaves (``DATA_EXPONENT``).

    Args:
        curves: micro-profiles, at most one a family.
        configs: Γ.
        training_crops: labelled crops that a retraining with all data would use, at least 1.
        validation_crops: crops behind each measured accuracy; None trusts them.
        history: of past windows, to correct a lasting bias.
        limits: how far the points may be trusted.

    Returns:
        Options sorted by γ.

    Raises:
        ValueError: two curves of one family, or no crops.
    """
    if training_crops < 1:
        raise ValueError("a retraining needs at least one crop")
    measured: dict[Family, FamilyCurve] = {}
    for curve in curves:
        if curve.family in measured:
            raise ValueError(f"two curves of one family: {curve.family}")
        measured[curve.family] = curve
    fitted = {
        family: fit_mixture(
            [epoch * curve.subset_crops for epoch in range(len(curve.accuracies))],
            curve.accuracies,
            validation_crops=validation_crops,
            limits=limits,
        )
        for family, curve in measured.items()
    }
    bias = bias_correction(history)
    found = []
    for config in sorted(set(configs)):
        family = family_of(config)
        if family not in measured:
            continue
        crops = crops_used(config, training_crops)
        curve = measured[family]
        error = 1.0 - fitted[family].accuracy_at(config.epochs * crops)
        accuracy = 1.0 - error * config.data_fraction**-DATA_EXPONENT + bias.of(family)
        scale = crops / curve.subset_crops
        found.append(
            RetrainOption(
                config=config,
                accuracy_after=min(1.0, max(0.0, accuracy)),
                gpu_s=scale * (curve.prepare_gpu_s + config.epochs * curve.epoch_gpu_s),
            )
        )
    return tuple(found)


def crops_used(config: RetrainConfig, training_crops: int) -> int:
    """Crops in one epoch of γ: its part of the training labels, at least one."""
    return max(1, round(config.data_fraction * training_crops))
