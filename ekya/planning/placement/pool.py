"""Shares of a single pool, the cores of a CPU machine, and rounding to shares that jobs can have."""

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from ekya.core.gpus import GpuGroups
from ekya.core.units import FULL_GPU_MILLI

JobT = TypeVar("JobT")

GroupsOf = Callable[[JobT], GpuGroups | None]
"""Groups of multiprocessors that a job can have exclusively; None for a job that is rounded to the step
instead."""


def no_groups(_job: object) -> None:
    """Returns None: no job has exclusive multiprocessors."""


class Steps(Generic[JobT]):
    """Rounds any share to one that a job can have.

    Args:
        step_milli: the smallest difference between two shares, 1 to 1000.
        groups: groups of multiprocessors of a job; where it has these, its shares are whole groups instead.

    Raises:
        ValueError: a step outside 1 to 1000.
    """

    def __init__(self, step_milli: int, groups: GroupsOf[JobT] = no_groups) -> None:
        if not 1 <= step_milli <= FULL_GPU_MILLI:
            raise ValueError(f"a step of {step_milli} thousandths is not between 1 and {FULL_GPU_MILLI}")
        self._step_milli = step_milli
        self._groups = groups

    def down(self, job: JobT, share_milli: int) -> int:
        """Returns the largest share that is not above this one, of one GPU at most."""
        share_milli, groups = min(share_milli, FULL_GPU_MILLI), self._groups(job)
        return self.whole(share_milli) if groups is None else groups.down(share_milli)

    def up(self, job: JobT, share_milli: int) -> int:
        """Returns the smallest share that is not below this one; can be more than a GPU."""
        groups = self._groups(job)
        return -self.whole(-share_milli) if groups is None else groups.up(share_milli)

    def whole(self, milli: int) -> int:
        """Rounds down to the step."""
        return milli // self._step_milli * self._step_milli


def round_down(shares: Mapping[JobT, int], steps: Steps[JobT], capacity_milli: int) -> dict[JobT, int]:
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
    granted = {job: steps.down(job, share) for job, share in shares.items()}
    places = {job: place for place, job in enumerate(granted)}
    while sum(granted.values()) > capacity_milli:
        largest = max(granted, key=lambda job: (granted[job], places[job]))
        granted[largest] = steps.down(largest, granted[largest] - 1)
    return granted


class Pool(Generic[JobT]):
    """Granted shares of one pool, which may still grow into spare capacity; no job is bound to a GPU."""

    def __init__(self, shares: Mapping[JobT, int], capacity_milli: int, steps: Steps[JobT]) -> None:
        """See ``round_down``."""
        self._steps = steps
        self._shares = round_down(shares, steps, capacity_milli)
        self._spare_milli = steps.whole(capacity_milli) - sum(self._shares.values())

    @property
    def spare_milli(self) -> int:
        """Spare capacity, in whole steps."""
        return self._spare_milli

    @property
    def gpus(self) -> Mapping[JobT, int]:
        """Always empty: no job is bound to a GPU."""
        return {}

    def share_milli(self, job: JobT) -> int:
        """Returns the share of a job; 0 for a job that was not asked for."""
        return self._shares.get(job, 0)

    def fitting_milli(self, job: JobT, wanted_milli: int) -> int | None:
        """Returns the smallest share from ``wanted_milli`` on to which a job can grow; None if none fits."""
        share = self._steps.up(job, wanted_milli)
        fits = share <= FULL_GPU_MILLI and share - self.share_milli(job) <= self._spare_milli
        return share if fits else None

    def grow(self, job: JobT, share_milli: int) -> None:
        """Gives a job a share that ``fitting_milli`` returned."""
        self._spare_milli -= share_milli - self.share_milli(job)
        self._shares[job] = share_milli
