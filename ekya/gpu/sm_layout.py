"""A GPU's multiprocessors (SMs) in the smallest groups that can be made, and who gets which (DESIGN §6)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ekya.core.gpu_groups import GpuGroups
from ekya.core.units import FULL_GPU_MILLI


@dataclass(frozen=True, slots=True, order=True)
class SmSpan:
    """Neighbouring groups of SMs.

    Attributes:
        gpu: place among the GPUs, from 0.
        first: the first group, from 0.
        groups: how many.
    """

    gpu: int
    first: int
    groups: int

    @property
    def end(self) -> int:
        """The group after the last."""
        return self.first + self.groups


@dataclass(frozen=True, slots=True)
class SmLayout:
    """How one GPU is split.

    Attributes:
        group_sms: SMs of a group; 8 on an H200, 2 or 4 on Ampere and Ada.
        groups: how many groups there are.
        rest_sms: SMs that make no whole group. Whoever has the last group has them too.
    """

    group_sms: int
    groups: int
    rest_sms: int = 0

    @property
    def sms(self) -> int:
        """All SMs."""
        return self.group_sms * self.groups + self.rest_sms

    @property
    def grouping(self) -> GpuGroups:
        """What its groups are worth as shares."""
        return GpuGroups(self.group_sms, self.sms)

    def sms_of(self, first: int, groups: int) -> int:
        """SMs of a span; what the driver grants can be fewer."""
        return groups * self.group_sms + (self.rest_sms if groups and first + groups == self.groups else 0)

    def share_milli(self, sms: int) -> int:
        """What so many SMs are of this GPU, rounded up as the share of groups is."""
        return -(-FULL_GPU_MILLI * sms // self.sms)

    def groups_for(self, share_milli: int) -> int:
        """The most groups that a share pays for; a full share pays for all."""
        return min(self.grouping.groups_for(share_milli), self.groups)


@dataclass(frozen=True, slots=True)
class SmReport:
    """What the driver says of all GPUs.

    Attributes:
        layouts: one a GPU, in CUDA's order; empty where green contexts cannot be made.
        why: one sentence.
    """

    layouts: tuple[SmLayout, ...]
    why: str


@dataclass(frozen=True, slots=True)
class SmGrants:
    """Shares as groups of SMs.

    Attributes:
        share_milli: by job, those of whole groups of ``coarsest``, never above what was asked.
        spans: of every job that got a group; no two overlap.
    """

    share_milli: Mapping[str, int]
    spans: Mapping[str, SmSpan]


def coarsest(layouts: Sequence[SmLayout]) -> GpuGroups:
    """The groups of the GPU on which one is most of it: in these, shares are granted on every GPU."""
    return max((layout.grouping for layout in layouts), key=lambda one: one.group_sms / one.sms)


def quantise_sms(shares: Mapping[str, int], layouts: Sequence[SmLayout]) -> SmGrants:
    """Whole groups for every job, on one GPU each.

    Where more is asked than there is, everybody gives up the same part, to the group; but a job that asked
    for at least a step gets one as long as there are as many steps as such jobs. Then the largest job is
    placed first, on the GPU with least room of those on which it fits; one that fits on none gets what
    the emptiest has left. What nobody has is at the start of a GPU. The order of ``shares`` does not matter.

    Args:
        shares: thousandths of a GPU by job; what is above a whole GPU is lost.
        layouts: one a GPU, at least one.
    """
    step = coarsest(layouts)
    rooms = [_of(step, layout.grouping, layout.groups) for layout in layouts]
    wanted = {job: min(step.groups_for(share), max(rooms)) for job, share in shares.items()}
    steps = _cut(wanted, sum(rooms))
    gpus = _place(steps, rooms)
    ends = [layout.groups for layout in layouts]
    spans: dict[str, SmSpan] = {}
    for job in sorted(gpus):
        gpu = gpus[job]
        groups = _of(layouts[gpu].grouping, step, steps[job])
        ends[gpu] -= groups
        spans[job] = SmSpan(gpu, ends[gpu], groups)
    return SmGrants({job: step.share_milli(steps[job]) for job in shares}, spans)


def _of(groups: GpuGroups, others: GpuGroups, count: int) -> int:
    """How many whole groups there are in so many of another GPU's, as parts of a GPU."""
    return count * others.group_sms * groups.sms // (others.sms * groups.group_sms)


def _cut(wanted: Mapping[str, int], most: int) -> dict[str, int]:
    """At most ``most`` steps in all: one for each first, then for whoever is furthest below its part."""
    asked = sum(wanted.values())
    if asked <= most:
        return dict(wanted)
    steps = dict.fromkeys(wanted, 0)
    for job in sorted(wanted, key=lambda one: (-wanted[one], one))[:most]:
        steps[job] = min(1, wanted[job])
    for _ in range(most - sum(steps.values())):
        hungry = (job for job in wanted if steps[job] < wanted[job])
        job = min(hungry, key=lambda one: (steps[one] * asked - wanted[one] * most, one))
        steps[job] += 1
    return steps


def _place(steps: dict[str, int], rooms: Sequence[int]) -> dict[str, int]:
    """The GPU of each job; cuts, in ``steps``, what fits on none."""
    left = list(rooms)
    gpus: dict[str, int] = {}
    for job in sorted(steps, key=lambda one: (-steps[one], one)):
        if steps[job] == 0:
            break
        fitting = [gpu for gpu, room in enumerate(left) if room >= steps[job]]
        gpu = min(fitting, key=lambda one: (left[one], one)) if fitting else left.index(max(left))
        steps[job] = min(steps[job], left[gpu])
        left[gpu] -= steps[job]
        gpus[job] = gpu
    return {job: gpu for job, gpu in gpus.items() if steps[job] > 0}


def place_again(taken: Sequence[bool], groups: int, held: SmSpan | None) -> SmSpan | None:
    """Where a job goes that wants so many groups and may only have those that nobody else has.

    It stays where it is, if it can; or goes to the smallest gap that is large enough, at the end of the
    GPU if the gap reaches it, so that two jobs do not stand in each other's way. Where no gap is
    large enough it takes the largest. ``gpu`` of the answer is that of ``held``, or 0.

    Args:
        taken: for every group whether another job has it; a job's own groups are not taken.
        groups: how many it wants, at least 1.
        held: what it has.
    """
    gpu = 0 if held is None else held.gpu
    gaps = _gaps(taken)
    if not gaps:
        return None
    if held is not None:
        first, end = next(gap for gap in gaps if gap[0] <= held.first < gap[1])
        if end - first >= groups:
            return SmSpan(gpu, max(first, min(held.first, end - groups)), groups)
    enough = [gap for gap in gaps if gap[1] - gap[0] >= groups]
    if enough:
        first, end = min(enough, key=lambda gap: (gap[1] - gap[0], gap))
        at_the_end = end == len(taken) and first > 0
        return SmSpan(gpu, end - groups if at_the_end else first, groups)
    first, end = max(gaps, key=lambda gap: (gap[1] - gap[0], -gap[0]))
    if held is not None and end - first <= held.groups:
        return held
    return SmSpan(gpu, first, end - first)


def _gaps(taken: Sequence[bool]) -> list[tuple[int, int]]:
    """Runs of groups that are free: the first, and the one after the last."""
    gaps: list[tuple[int, int]] = []
    for group, is_taken in enumerate(taken):
        if is_taken:
            continue
        if gaps and gaps[-1][1] == group:
            gaps[-1] = (gaps[-1][0], group + 1)
        else:
            gaps.append((group, group + 1))
    return gaps
