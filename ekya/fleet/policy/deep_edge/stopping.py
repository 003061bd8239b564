"""Early stopping of the Accuracy Monitor (Deep-Edge §IV.B.5, after Optimus).

The user's number of epochs is the first estimate and the upper bound. After each epoch a learning curve is
fitted to the accuracies so far, by default that of Optimus, which can be flat; the training ends where the
expected gain of an epoch falls below the least gain that is worth it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ekya.planning.profiling.curve import CURVE_FITS

LEAST_POINTS = 3
"""Measured epochs before the user's number can be reduced."""


@dataclass(frozen=True, slots=True)
class StopRule:
    """Criterion for early stopping.

    Attributes:
        least_gain: minimum of the expected gain in accuracy per further epoch.
        fit: of the learning curve, a key of ``CURVE_FITS``.
    """

    least_gain: float = 0.002
    fit: str = "optimus"


@dataclass(frozen=True, slots=True)
class Outlook:
    """Forecast of a training.

    Attributes:
        epochs: recommended total number, including those that are done.
        accuracy: expected after the last.
    """

    epochs: int
    accuracy: float
    reason: str


def outlook(
    accuracies: Sequence[float], planned: int, rule: StopRule, validation_crops: int | None = None
) -> Outlook:
    """Recommends a training's number of epochs from its accuracies so far.

    Args:
        accuracies: on the validation part, before the first epoch and after each; never empty.
        planned: the user's number of epochs.
        validation_crops: number behind each accuracy; None: accuracies are taken as exact.

    Raises:
        ValueError: no accuracy, or an unknown fit.
    """
    if not accuracies:
        raise ValueError("an outlook needs the accuracy before the first epoch")
    done = len(accuracies) - 1
    if done < LEAST_POINTS or done >= planned:
        return Outlook(planned, accuracies[-1], f"{done} of {planned} epochs are done")
    if rule.fit not in CURVE_FITS:
        raise ValueError(f"there is no fit {rule.fit}; there are {', '.join(CURVE_FITS)}")
    xs = [float(epoch) for epoch in range(len(accuracies))]
    curve = CURVE_FITS[rule.fit](xs, accuracies, validation_crops=validation_crops)
    now = curve.accuracy_at(done)
    gains = {
        epochs: curve.accuracy_at(epochs) - now - rule.least_gain * (epochs - done)
        for epochs in range(done, planned + 1)
    }
    # In a tie the fewest epochs.
    best = max(gains, key=lambda epochs: (gains[epochs], -epochs))
    expected = curve.accuracy_at(best)
    if best == done:
        reason = f"no further epoch is expected to bring {rule.least_gain:g}"
    else:
        reason = f"{best} epochs are expected to reach {expected:.3f}, from {now:.3f} after {done}"
    return Outlook(best, expected, reason)
