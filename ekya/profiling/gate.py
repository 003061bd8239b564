"""The shadow gate: whether new weights may serve, by what they and the old ones make of the newest labels."""

SERVE_MARGIN = 0.0
"""How much worse new weights may measure than those that serve, and serve all the same."""

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
