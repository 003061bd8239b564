"""Rounding of shares to those that jobs can have."""

from collections.abc import Mapping

from ekya.core.shares import Job
from ekya.core.units import FULL_GPU_MILLI


class ShareSteps:
    """Rounds any share to one that a job can have.

    Args:
        step_milli: the smallest difference between two shares, 1 to 1000.

    Raises:
        ValueError: a step outside 1 to 1000.
    """

    def __init__(self, step_milli: int) -> None:
        if not 1 <= step_milli <= FULL_GPU_MILLI:
            raise ValueError(f"a step of {step_milli} thousandths is not between 1 and {FULL_GPU_MILLI}")
        self._step_milli = step_milli

    def floor_share(self, share_milli: int) -> int:
        """Returns the largest share that is not above this one, of one GPU at most."""
        return self.floor_to_step(min(share_milli, FULL_GPU_MILLI))

    def ceil_share(self, share_milli: int) -> int:
        """Returns the smallest share that is not below this one; can be more than a GPU."""
        return -self.floor_to_step(-share_milli)

    def floor_to_step(self, milli: int) -> int:
        """Rounds down to the step."""
        return milli // self._step_milli * self._step_milli


def round_down(shares: Mapping[Job, int], steps: ShareSteps, capacity_milli: int) -> dict[Job, int]:
    """Rounds every share down to one that can be granted.

    Where the shares exceed the capacity, the largest grants are reduced step by step, the last of equal ones
    first, so that a small share is not the one that disappears.

    Args:
        shares: the share asked for by each job, in thousandths of a GPU.
        steps: what can be granted.
        capacity_milli: total over all GPUs.

    Returns:
        Granted shares in the order in which they were asked for: at most one GPU each, together at most the
            capacity.

    Raises:
        ValueError: a negative share or capacity.
    """
    if capacity_milli < 0 or any(share < 0 for share in shares.values()):
        raise ValueError("shares and capacity cannot be negative")
    granted = {job: steps.floor_share(share) for job, share in shares.items()}
    places = {job: place for place, job in enumerate(granted)}
    while sum(granted.values()) > capacity_milli:
        largest = max(granted, key=lambda job: (granted[job], places[job]))
        granted[largest] = steps.floor_share(granted[largest] - 1)
    return granted
