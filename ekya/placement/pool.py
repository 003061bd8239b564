"""Shares of what is one pool: the cores of a CPU machine, which the operating system shares out."""

from collections.abc import Mapping
from typing import Generic, TypeVar

from ekya.core.units import FULL_GPU_MILLI

JobT = TypeVar("JobT")


def round_down(shares: Mapping[JobT, int], step_milli: int, capacity_milli: int) -> dict[JobT, int]:
    """Every share rounded down to the backend's step.

    Where the shares ask for more than there is, the largest grants give way step by step, the last
    asked for first among equals, so that a small share is not the one that disappears.

    Args:
        shares: the share asked for by each job, in thousandths of a GPU.
        step_milli: the smallest difference between two grants, 1 to 1000.
        capacity_milli: what there is over all GPUs.

    Returns:
        Granted shares in the order in which they were asked for: multiples of the step, at most one
        GPU each, together at most the capacity.

    Raises:
        ValueError: a negative share or capacity, or a step outside 1 to 1000.
    """
    if not 1 <= step_milli <= FULL_GPU_MILLI:
        raise ValueError(f"a step of {step_milli} thousandths is not between 1 and {FULL_GPU_MILLI}")
    if capacity_milli < 0 or any(share < 0 for share in shares.values()):
        raise ValueError("shares and capacity cannot be negative")
    steps = [min(share, FULL_GPU_MILLI) // step_milli for share in shares.values()]
    available = capacity_milli // step_milli
    while sum(steps) > available:
        largest = max(range(len(steps)), key=lambda index: (steps[index], index))
        steps[largest] -= 1
    return {job: count * step_milli for job, count in zip(shares, steps, strict=True)}


def round_up(share_milli: int, step_milli: int) -> int:
    """The smallest multiple of the step that is not below the share."""
    return -(-share_milli // step_milli) * step_milli


class Pool(Generic[JobT]):
    """Granted shares of one pool, which may still grow into what is left. Nobody stands on a GPU."""

    def __init__(self, shares: Mapping[JobT, int], capacity_milli: int, step_milli: int) -> None:
        """See ``round_down``."""
        self._step_milli = step_milli
        self._shares = round_down(shares, step_milli, capacity_milli)
        self._spare_milli = capacity_milli // step_milli * step_milli - sum(self._shares.values())

    @property
    def spare_milli(self) -> int:
        """What nobody holds, in whole steps."""
        return self._spare_milli

    @property
    def gpus(self) -> Mapping[JobT, int]:
        """Which GPU a job stands on: no job does on one."""
        return {}

    def share_milli(self, job: JobT) -> int:
        """What a job holds; 0 for one that was not asked for."""
        return self._shares.get(job, 0)

    def fitting_milli(self, job: JobT, wanted_milli: int) -> int | None:
        """The smallest share of at least ``wanted_milli`` that the job can grow to; None if none fits."""
        share = round_up(wanted_milli, self._step_milli)
        fits = share <= FULL_GPU_MILLI and share - self.share_milli(job) <= self._spare_milli
        return share if fits else None

    def grow(self, job: JobT, share_milli: int) -> None:
        """Gives a job a share that ``fitting_milli`` named."""
        self._spare_milli -= share_milli - self.share_milli(job)
        self._shares[job] = share_milli
