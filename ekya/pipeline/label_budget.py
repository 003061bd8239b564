"""Budget of the golden model's labels in a window."""

SAMPLE_PART = 0.75
"""Part of a label budget for the window's sample; the rest is for the burst on which λ are measured."""


def affordable_count(budget_gpu_s: float | None, one_gpu_s: float, most: int) -> int:
    """Returns how many items at ``one_gpu_s`` each a budget covers, at most ``most``.

    Without a budget it is ``most``.
    """
    if budget_gpu_s is None or one_gpu_s <= 0.0:
        return most
    # A rounding error of the division must not cost an item where the budget is exact.
    return min(max(int(budget_gpu_s / one_gpu_s + 1e-9), 0), most)
