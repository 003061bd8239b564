"""The shadow gate: whether new weights serve, by what they and the old ones make of the newest labels.

It is asked twice: when a retraining is over, on the labels that it was measured with, and once more when the
window is labelled in which its weights have served.
"""

from ekya.core.compared import Compared

SERVE_MARGIN = 0.0
"""How much worse new weights may measure than those that serve, and serve all the same."""

ROLL_BACK_MARGIN = 0.12
"""How much worse new weights may do on the labels of a window that they have served in, and stay: twice of
what such a difference is off by (``experiments/shadow_gate.py``). A narrower margin gains nothing there."""

NEVER_BACK = 1.0
"""With this margin no weights ever go back, and nobody need compare them."""

LEAST_OBJECTS = 8
"""Of fewer nothing is concluded."""

NOTHING_RIGHT = 1e-9
"""Weights below this accuracy have shown nothing."""


def why_not(new: float, old: float, margin: float) -> str | None:
    """Why new weights may not serve, in words for an operator; None where they may.

    Both accuracies are of the same newest labels. Weights that get nothing right are no better than what
    serves, even where that gets nothing right.

    Args:
        new: accuracy of the new weights.
        old: of those that serve.
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
    """Why the weights before those that serve are to serve again; None where they are not."""
    if compared.objects < LEAST_OBJECTS or compared.new >= compared.old - margin:
        return None
    return (
        f"of {compared.objects} objects labelled since, the new weights get {compared.new:.1%} right, and "
        f"those before them {compared.old:.1%}"
    )
