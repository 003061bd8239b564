"""Estimates the options that a scheduler chooses from (paper §4.3), in one of two ways.

- ``ekya``, the default, tries nothing. The differences between γ are much the same in every window, while a
  short trial on the labels of one is mostly noise: sixteen validation crops miss by ten points, and the γ of
  one stream differ by less. So every γ is offered as soon as there are labels, with the error that past
  retrainings of the fleet let expect (``outcomes.py``). The retraining itself is the trial: its best weights
  serve whatever becomes of it, and nothing that was learnt is thrown away. A γ costs what the cost card says.
- ``paper``: Optimus' curve through each family's micro-profile, at the crops that γ sees. While a retraining
  runs its own epochs renew its estimate (``reestimated_accuracy``).
"""

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

from ekya.core.configs import RetrainConfig
from ekya.core.profile import Family, FamilyCost, FamilyCurve, family_of
from ekya.core.view import RetrainOption
from ekya.planning.profiling.learning_curve import fit_optimus
from ekya.planning.profiling.outcomes import EPOCHS_EXPONENT, error_part

ON_THE_WAY = (0.125, 0.375, 0.625, 0.875)
"""Parts of a γ's epochs at which its gain so far is sampled."""


def estimate_by_outcomes(
    configs: Iterable[RetrainConfig],
    costs: Iterable[FamilyCost],
    training_crops: int,
    serving_accuracy: float,
    expected_error: Callable[[Family], float],
) -> tuple[RetrainOption, ...]:
    """Returns every γ of a family with a known cost, by what is usual and what past outcomes have shown.

    Args:
        configs: Γ.
        costs: usual costs of families.
        training_crops: labels that a retraining on all data learns from.
        serving_accuracy: of the model that serves, on the newest labels.
        expected_error: error that a family's usual γ leaves.

    Returns:
        Options sorted by γ.
    """
    known = {cost.family: cost for cost in costs}
    errors = {family: expected_error(family) for family in known}
    return tuple(
        _expected_option(
            config, errors[family_of(config)], known[family_of(config)], training_crops, serving_accuracy
        )
        for config in sorted(set(configs))
        if family_of(config) in known
    )


def _expected_option(
    config: RetrainConfig, usual: float, cost: FamilyCost, crops: int, before: float
) -> RetrainOption:
    # No γ, not even the worst, has an error above 1.
    error = min(usual * error_part(config), 1.0)
    epochs_part = cost.epoch_gpu_s * config.epochs
    whole = cost.prepare_gpu_s + epochs_part
    return RetrainOption(
        config,
        1.0 - error,
        cost.gpu_s(config, crops),
        early_part=_early_part(error, before) * (epochs_part / whole if whole > 0.0 else 0.0),
    )


def _early_part(error: float, before: float) -> float:
    """Returns the mean part of its gain over ``before`` that a γ has on the way; 0.0 without a gain.

    ``error`` is what it leaves in the end. It has no gain while its features are prepared.
    """
    gain = 1.0 - error - before
    if gain <= 0.0:
        return 0.0
    parts = ((1.0 - error * part**-EPOCHS_EXPONENT - before) / gain for part in ON_THE_WAY)
    return fmean(min(max(part, 0.0), 1.0) for part in parts)


def estimate_as_in_the_paper(
    curves: Iterable[FamilyCurve], configs: Iterable[RetrainConfig], training_crops: int
) -> tuple[RetrainOption, ...]:
    """Returns estimates by Optimus' curve through each family's points, and nothing else.

    γ of families without points are left out. GPU-seconds are those measured for the crops of the subset,
    scaled by crops and epochs.

    Args:
        curves: micro-profiles, at most one a family.
        configs: Γ.
        training_crops: labelled crops that a retraining with all data would use, at least 1.

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
        family: fit_optimus(
            [float(epoch * of.subset_crops) for epoch in range(len(of.accuracies))], of.accuracies
        )
        for family, of in measured.items()
        if of.accuracies
    }
    options = []
    for config in sorted(set(configs)):
        family, crops = family_of(config), crops_used(config, training_crops)
        if family in fitted:
            accuracy = fitted[family].accuracy_at(config.epochs * crops)
            options.append(RetrainOption(config, accuracy, _profiled_gpu_s(measured[family], config, crops)))
    return tuple(options)


def _profiled_gpu_s(curve: FamilyCurve, config: RetrainConfig, crops: int) -> float:
    fixed = curve.fixed_prepare_gpu_s + config.epochs * curve.fixed_epoch_gpu_s
    return fixed + crops / curve.subset_crops * (curve.prepare_gpu_s + config.epochs * curve.epoch_gpu_s)


def crops_used(config: RetrainConfig, training_crops: int) -> int:
    """Returns the crops in one epoch of γ: its part of the training labels, at least one."""
    return max(1, round(config.data_fraction * training_crops))


def reestimated_accuracy(config: RetrainConfig, promised: float, accuracies: Sequence[float]) -> float:
    """Returns the expected accuracy of a running retraining, from its epochs so far (paper §5).

    With d of E epochs done, it is d/E of the prediction for epoch E by the curve through the epochs so far,
    and 1 − d/E of what was promised: at first the profile is the better source, at the end the retraining
    itself. It is never below the best epoch so far, because the best epoch serves.

    Args:
        config: γ.
        promised: accuracy by its profile.
        accuracies: validation accuracy after each epoch so far, at least one.

    Raises:
        ValueError: more epochs than γ has, or accuracies that ``fit_optimus`` does not take.
    """
    done, total = len(accuracies), config.epochs
    if done > total:
        raise ValueError(f"{done} epochs are done, but γ has {total}")
    curve = fit_optimus(range(1, done + 1), accuracies)
    known = done / total
    return max(known * curve.accuracy_at(total) + (1.0 - known) * promised, *accuracies)
