"""Shares of a GPU whose multiprocessors are given out in groups, in whole thousandths."""

from dataclasses import dataclass

from ekya.core.units import FULL_GPU_MILLI


@dataclass(frozen=True, slots=True)
class GpuGroups:
    """What a job can have that has multiprocessors (SMs) of its own: whole groups of them.

    A group is no whole number of thousandths (8 of 132 SMs are 60.6), so the share of k groups is k times
    a group, rounded up: shares that add up to no more than a GPU never pay for more SMs than it has. What is
    less than a group stays as it is, since such a job has no SMs of its own.

    Attributes:
        group_sms: SMs of a group.
        sms: all SMs of the GPU.
    """

    group_sms: int
    sms: int

    def groups_for(self, share_milli: int) -> int:
        """The most groups that a share pays for."""
        return share_milli * self.sms // (FULL_GPU_MILLI * self.group_sms)

    def share_milli(self, groups: int) -> int:
        """The smallest share that pays for so many groups."""
        return -(-groups * self.group_sms * FULL_GPU_MILLI // self.sms)

    def down(self, share_milli: int) -> int:
        """The largest share that a job can have and that is not above this one."""
        groups = self.groups_for(share_milli)
        return self.share_milli(groups) if groups else share_milli

    def up(self, share_milli: int) -> int:
        """The smallest share that a job can have and that is not below this one; can be more than a GPU."""
        down = self.down(share_milli)
        return down if down == share_milli else self.share_milli(self.groups_for(share_milli) + 1)
