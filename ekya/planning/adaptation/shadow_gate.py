"""Shadow gate: decides whether new weights serve, by the accuracy of new and old ones on the newest labels.

It runs twice: when a retraining completes, on the labels that it was measured with, and again when the
window in which its weights have served is labelled.
"""

from ekya.core.weights import Compared

SERVE_MARGIN = 0.0
"""Margin by which new weights may measure worse than those that serve, and serve all the same."""

ROLL_BACK_MARGIN = 0.12
"""Margin by which new weights may do worse on the labels of a window that they have served in, and stay:
twice the error of such a difference on the default fleet, where a narrower margin gained nothing."""

NEVER_BACK = 1.0
"""Margin with which no weights are ever rolled back, so that none need be compared."""

LEAST_OBJECTS = 8
"""With fewer objects nothing is concluded."""

NOTHING_RIGHT = 1e-9
"""Accuracy below which weights have shown nothing."""


def why_not(new: float, old: float, margin: float) -> str | None:
    """Returns the reason why new weights may not serve, in words for the operator; None where they may.

    Both accuracies are of the same newest labels. Weights that get nothing right are no better than those
    that serve, even where these get nothing right either.

    Args:
        new: accuracy of the new weights.
        old: accuracy of those that serve.
        margin: how much worse the new ones may be.
    """
    if new < NOTHING_RIGHT:
        return "the new weights get nothing of the newest labels right"
    if new >= old - margin:
        return None
    allowed = f", which is more than {margin:.1%} worse" if margin else ""
    return (
        f"the new weights get {new:.1%} of the newest labels right, and those that serve {old:.1%}{allowed}"
    )


def why_back(compared: Compared, margin: float) -> str | None:
    """Returns the reason why the previous weights are to serve again; None where they are not."""
    if compared.objects < LEAST_OBJECTS or compared.new >= compared.old - margin:
        return None
    return (
        f"of {compared.objects} objects labelled since, the new weights get {compared.new:.1%} right, and "
        f"those before them {compared.old:.1%}"
    )
