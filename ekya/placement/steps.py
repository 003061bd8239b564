"""Rounds shares to ones that jobs can have."""

from collections.abc import Callable
from typing import Generic, TypeVar

from ekya.core.gpu_groups import GpuGroups
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
