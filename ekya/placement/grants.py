"""Rounds shares to what a backend can grant, and says what that took away (DESIGN §5, §6)."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from ekya.core.units import FULL_GPU_MILLI

JobT = TypeVar("JobT", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Grants(Generic[JobT]):
    """What each job gets.

    Attributes:
        shares_milli: (job, granted share) in the order in which they were asked for; multiples of the
            step, at most one GPU each, together at most the capacity.
        lost_milli: (job, share) for each job that gets less than it asked for, in the same order.
        spare_milli: share that nobody holds, a multiple of the step.
    """

    shares_milli: tuple[tuple[JobT, int], ...]
    lost_milli: tuple[tuple[JobT, int], ...]
    spare_milli: int

    @property
    def rounding_cost_milli(self) -> int:
        """What all jobs together asked for and did not get."""
        return sum(lost for _, lost in self.lost_milli)


def quantise(shares: Mapping[JobT, int], step_milli: int, capacity_milli: int) -> Grants[JobT]:
    """Rounds every share down to the backend's step.

    Where the shares ask for more than there is, the largest grants give way step by step, the last
    asked for first among equals, so that a small share is not the one that disappears.

    Args:
        shares: the share asked for by each job, in thousandths of a GPU.
        step_milli: the smallest difference between two grants, 1 to 1000.
        capacity_milli: what there is over all GPUs.

    Raises:
        ValueError: a negative share or capacity, or a step outside 1 to 1000.
    """
    if not 1 <= step_milli <= FULL_GPU_MILLI:
        raise ValueError(f"a step of {step_milli} thousandths is not between 1 and {FULL_GPU_MILLI}")
    if capacity_milli < 0 or any(share < 0 for share in shares.values()):
        raise ValueError("shares and capacity cannot be negative")
    jobs = list(shares)
    steps = [min(shares[job], FULL_GPU_MILLI) // step_milli for job in jobs]
    available = capacity_milli // step_milli
    while sum(steps) > available:
        largest = max(range(len(steps)), key=lambda index: (steps[index], index))
        steps[largest] -= 1
    granted = [(job, count * step_milli) for job, count in zip(jobs, steps, strict=True)]
    return Grants(
        shares_milli=tuple(granted),
        lost_milli=tuple((job, shares[job] - share) for job, share in granted if share < shares[job]),
        spare_milli=(available - sum(steps)) * step_milli,
    )
