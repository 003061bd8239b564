"""Re-estimates a running retraining from its epochs so far (paper §5, adapting estimates)."""

from collections.abc import Sequence
from dataclasses import replace

from ekya.core.view import RetrainOption
from ekya.planning.profiling.curve import DEFAULT_LIMITS, FitLimits, fit_mixture


def reestimate(
    option: RetrainOption,
    points: Sequence[tuple[int, float]],
    spent_gpu_s: float,
    *,
    validation_crops: int | None = None,
    limits: FitLimits = DEFAULT_LIMITS,
) -> RetrainOption:
    """Returns the running γ with its current expected accuracy and its remaining GPU-seconds.

    With d of E epochs done, the accuracy is d/E of the prediction for epoch E by the curve through the
    epochs so far, and 1 − d/E of the profile's: at first the profile is the better source, at the end the
    retraining itself. It is never below the best epoch so far, because the best epoch serves. GPU-seconds
    per epoch are those measured.

    Args:
        option: γ as it was profiled, with all its GPU-seconds.
        points: (epochs done, validation accuracy) so far, rising; normally from (0, before training).
        spent_gpu_s: GPU-seconds spent up to the last point.
        validation_crops: crops behind each accuracy; None trusts them.
        limits: limits of trust in the points.

    Raises:
        ValueError: more epochs done than γ has, or points that ``fit_mixture`` does not take.
    """
    done = points[-1][0] if points else 0
    total = option.config.epochs
    if done > total:
        raise ValueError(f"{done} epochs are done, but γ has {total}")
    if done == 0:
        return replace(option, gpu_s=max(0.0, option.gpu_s - spent_gpu_s))
    curve = fit_mixture(
        [epoch for epoch, _ in points],
        [accuracy for _, accuracy in points],
        validation_crops=validation_crops,
        limits=limits,
    )
    known = done / total
    accuracy = known * curve.accuracy_at(total) + (1.0 - known) * option.accuracy_after
    best = max(accuracy for epoch, accuracy in points if epoch > 0)
    return replace(option, accuracy_after=max(accuracy, best), gpu_s=spent_gpu_s / done * (total - done))
