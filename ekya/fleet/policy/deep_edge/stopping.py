"""Early stopping of the Accuracy Monitor (Deep-Edge §IV.B.5, after Optimus).

The user's number of epochs is the first estimate and the upper bound. After each epoch a learning curve is
fitted to the accuracies so far, that of Optimus, which can be flat; the training ends where the
expected gain of an epoch falls below the least gain that is worth it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ekya.planning.profiling.learning_curve import fit_optimus

LEAST_POINTS = 3
"""Measured epochs before the user's number can be reduced."""


LEAST_GAIN = 0.002
"""Expected gain in accuracy for which a further epoch is trained."""


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


def outlook(accuracies: Sequence[float], planned: int) -> Outlook:
    """Recommends a training's number of epochs from its accuracies so far.

    Args:
        accuracies: on the validation part, before the first epoch and after each; never empty.
        planned: the user's number of epochs.

    Raises:
        ValueError: no accuracy.
    """
    if not accuracies:
        raise ValueError("an outlook needs the accuracy before the first epoch")
    done = len(accuracies) - 1
    if done < LEAST_POINTS or done >= planned:
        return Outlook(planned, accuracies[-1], f"{done} of {planned} epochs are done")
    curve = fit_optimus([float(epoch) for epoch in range(len(accuracies))], accuracies)
    now = curve.accuracy_at(done)
    gains = {
        epochs: curve.accuracy_at(epochs) - now - LEAST_GAIN * (epochs - done)
        for epochs in range(done, planned + 1)
    }
    # In a tie the fewest epochs.
    best = max(gains, key=lambda epochs: (gains[epochs], -epochs))
    expected = curve.accuracy_at(best)
    if best == done:
        reason = f"no further epoch is expected to bring {LEAST_GAIN:g}"
    else:
        reason = f"{best} epochs are expected to reach {expected:.3f}, from {now:.3f} after {done}"
    return Outlook(best, expected, reason)
