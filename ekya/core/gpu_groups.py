"""Converts between shares of a GPU, in whole thousandths, and groups of its multiprocessors."""

from dataclasses import dataclass

from ekya.core.units import FULL_GPU_MILLI


@dataclass(frozen=True, slots=True)
class GpuGroups:
    """Rounding of shares for jobs with dedicated multiprocessors (SMs), which come in whole groups.

    A group is no whole number of thousandths (8 of 132 SMs are 60.6), so the share of k groups is k times
    a group, rounded up: shares that add up to at most one GPU never pay for more SMs than it has. A share
    below one group is not rounded, since such a job has no dedicated SMs.

    Attributes:
        group_sms: SMs of a group.
        sms: all SMs of the GPU.
    """

    group_sms: int
    sms: int

    def groups_for(self, share_milli: int) -> int:
        """Returns the most groups that a share pays for."""
        return share_milli * self.sms // (FULL_GPU_MILLI * self.group_sms)

    def share_milli(self, groups: int) -> int:
        """Returns the smallest share that pays for this number of groups."""
        return -(-groups * self.group_sms * FULL_GPU_MILLI // self.sms)

    def down(self, share_milli: int) -> int:
        """Returns the largest possible share that is not above this one."""
        groups = self.groups_for(share_milli)
        return self.share_milli(groups) if groups else share_milli

    def up(self, share_milli: int) -> int:
        """Returns the smallest possible share that is not below this one; can be more than a GPU."""
        down = self.down(share_milli)
        return down if down == share_milli else self.share_milli(self.groups_for(share_milli) + 1)
