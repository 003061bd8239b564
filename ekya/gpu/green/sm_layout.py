"""Divides a GPU's multiprocessors (SMs) into the smallest possible groups and assigns these to jobs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ekya.core.gpus import GpuGroups
from ekya.core.units import FULL_GPU_MILLI


@dataclass(frozen=True, slots=True, order=True)
class SmSpan:
    """Contiguous groups of SMs.

    Attributes:
        gpu: position among the GPUs, from 0.
        first: index of the first group, from 0.
        groups: number of groups.
    """

    gpu: int
    first: int
    groups: int

    @property
    def end(self) -> int:
        """Index after the last group."""
        return self.first + self.groups


@dataclass(frozen=True, slots=True)
class SmLayout:
    """Division of one GPU into groups of SMs.

    Attributes:
        group_sms: SMs of a group; 8 on an H200, 2 or 4 on Ampere and Ada.
        groups: number of groups.
        rest_sms: SMs left over from whole groups; they belong to the last group.
    """

    group_sms: int
    groups: int
    rest_sms: int = 0

    @property
    def sms(self) -> int:
        """Number of SMs of the GPU."""
        return self.group_sms * self.groups + self.rest_sms

    @property
    def grouping(self) -> GpuGroups:
        """Conversion between groups and shares."""
        return GpuGroups(self.group_sms, self.sms)

    def sms_of(self, first: int, groups: int) -> int:
        """Returns the SMs of a span; the driver may grant fewer."""
        return groups * self.group_sms + (self.rest_sms if groups and first + groups == self.groups else 0)

    def share_milli(self, sms: int) -> int:
        """Returns these SMs as a share of this GPU, rounded up as the share of groups is."""
        return -(-FULL_GPU_MILLI * sms // self.sms)

    def groups_for(self, share_milli: int) -> int:
        """Returns the most groups that a share pays for; a full share pays for all."""
        return min(self.grouping.groups_for(share_milli), self.groups)


@dataclass(frozen=True, slots=True)
class SmReport:
    """Result of asking the driver how it splits the GPUs.

    Attributes:
        layouts: one per GPU, in CUDA's order; empty where green contexts cannot be made.
        why: reason, in one sentence.
    """

    layouts: tuple[SmLayout, ...]
    why: str


@dataclass(frozen=True, slots=True)
class SmGrants:
    """Shares as groups of SMs.

    Attributes:
        share_milli: by job; shares of whole groups of ``coarsest``, never above the requested ones.
        spans: by job, for every job that got a group; no two overlap.
    """

    share_milli: Mapping[str, int]
    spans: Mapping[str, SmSpan]


def coarsest(layouts: Sequence[SmLayout]) -> GpuGroups:
    """Returns the groups of the GPU on which one group is the largest part.

    Shares are granted in these groups on every GPU.
    """
    return max((layout.grouping for layout in layouts), key=lambda one: one.group_sms / one.sms)


def quantise_sms(shares: Mapping[str, int], layouts: Sequence[SmLayout]) -> SmGrants:
    """Assigns whole groups to every job, each on one GPU.

    Where the requests exceed the capacity, all jobs give up the same part, to within a group; but a job that
    asked for at least one step gets one while there are as many steps as such jobs. Placement is best-fit
    decreasing; a job that fits on no GPU gets what the emptiest has left. Free groups are at the start of a
    GPU. The order of ``shares`` does not matter.

    Args:
        shares: thousandths of a GPU by job; anything above a whole GPU is lost.
        layouts: one per GPU, at least one.
    """
    step = coarsest(layouts)
    capacities = [_of(step, layout.grouping, layout.groups) for layout in layouts]
    wanted = {job: min(step.groups_for(share), max(capacities)) for job, share in shares.items()}
    steps = _cut(wanted, sum(capacities))
    gpus = _place(steps, capacities)
    ends = [layout.groups for layout in layouts]
    spans: dict[str, SmSpan] = {}
    for job in sorted(gpus):
        gpu = gpus[job]
        groups = _of(layouts[gpu].grouping, step, steps[job])
        ends[gpu] -= groups
        spans[job] = SmSpan(gpu, ends[gpu], groups)
    return SmGrants({job: step.share_milli(steps[job]) for job in shares}, spans)


def _of(groups: GpuGroups, others: GpuGroups, count: int) -> int:
    """Converts ``count`` groups of another GPU to whole groups of this one, as parts of a GPU."""
    return count * others.group_sms * groups.sms // (others.sms * groups.group_sms)


def _cut(wanted: Mapping[str, int], most: int) -> dict[str, int]:
    """Cuts jobs to ``most`` steps in total: first one each, then to the job furthest below its part."""
    total = sum(wanted.values())
    if total <= most:
        return dict(wanted)
    steps = dict.fromkeys(wanted, 0)
    for job in sorted(wanted, key=lambda one: (-wanted[one], one))[:most]:
        steps[job] = min(1, wanted[job])
    for _ in range(most - sum(steps.values())):
        hungry = (job for job in wanted if steps[job] < wanted[job])
        job = min(hungry, key=lambda one: (steps[one] * total - wanted[one] * most, one))
        steps[job] += 1
    return steps


def _place(steps: dict[str, int], capacities: Sequence[int]) -> dict[str, int]:
    """Returns the GPU of each job; reduces ``steps`` in place for jobs that fit on none."""
    left = list(capacities)
    gpus: dict[str, int] = {}
    for job in sorted(steps, key=lambda one: (-steps[one], one)):
        if steps[job] == 0:
            break
        fitting = [gpu for gpu, free in enumerate(left) if free >= steps[job]]
        gpu = min(fitting, key=lambda one: (left[one], one)) if fitting else left.index(max(left))
        steps[job] = min(steps[job], left[gpu])
        left[gpu] -= steps[job]
        gpus[job] = gpu
    return {job: gpu for job, gpu in gpus.items() if steps[job] > 0}


def place_again(taken: Sequence[bool], groups: int, held: SmSpan | None) -> SmSpan | None:
    """Returns a free span for a job, or None where all groups are taken.

    The job stays in place if it can; otherwise it takes the smallest gap that is large enough, at the end of
    the GPU if the gap reaches it, so that two jobs do not block each other. If no gap is large enough it
    takes the largest. ``gpu`` of the result is that of ``held``, or 0.

    Args:
        taken: for every group whether another job has it; a job's own groups are not taken.
        groups: number of wanted groups, at least 1.
        held: span that the job has now.
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
    """Returns runs of free groups as (first, index after the last)."""
    gaps: list[tuple[int, int]] = []
    for group, is_taken in enumerate(taken):
        if is_taken:
            continue
        if gaps and gaps[-1][1] == group:
            gaps[-1] = (gaps[-1][0], group + 1)
        else:
            gaps.append((group, group + 1))
    return gaps
