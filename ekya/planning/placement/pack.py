"""Packs the shares of a plan onto GPUs (paper §5, placement onto GPUs).

``Halves`` quantises shares to inverse powers of two. A job of level k gets 1/2^k of a GPU and takes a slot of
that size. Slots are packed in descending order, each on the first GPU on which it still fits. **Nothing is
lost by that** for any sizes of the GPUs. When a slot of size s is to be placed, every slot placed before is a
multiple of s. So a GPU of capacity C of which u is used can take floor(C / s) - u / s more slots of size s,
and where no GPU can take any, the slots of size s or more would fill

    sum over GPUs of floor(C / s) · s,

which no packing can exceed. Hence a set of levels can be packed if and only if, for every s, the slots of
size s or more fill no more than that; testing whether a share may grow needs no packing (``_fits``).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import accumulate

from ekya.core.shares import Job
from ekya.core.units import FULL_GPU_MILLI
from ekya.planning.placement.rounding import ShareSteps, round_down

LAST_LEVEL = FULL_GPU_MILLI.bit_length() - 1
"""Level of the smallest share above 0: 1/512 of a GPU, one thousandth."""

_WHOLE = 1 << LAST_LEVEL
"""Number of slots of the smallest size on a GPU."""


def share_of_level(level: int) -> int:
    """Returns 1/2^level of a GPU in thousandths, rounded down."""
    return FULL_GPU_MILLI >> level


class Halves:
    """Granted shares on GPUs, all of them inverse powers of two; they grow to the next larger ones.

    The GPU of a job follows from the shares alone, so a share that grows can move other jobs.
    """

    def __init__(self, shares: Mapping[Job, int], gpus_milli: Sequence[int], steps: ShareSteps) -> None:
        """Rounds every share down; where they do not fit, the largest are halved, the last one first.

        Args:
            shares: the share asked for by each job, in thousandths of a GPU.
            gpus_milli: capacity of each GPU, 0 to 1000.
            steps: what can be granted: a job gets what fits into its slot.

        Raises:
            ValueError: a negative share.
        """
        if any(share < 0 for share in shares.values()):
            raise ValueError("shares cannot be negative")
        self._steps = steps
        self._free = tuple(milli * _WHOLE // FULL_GPU_MILLI for milli in gpus_milli)
        # The most that slots of this size or more can fill.
        self._limits = [
            sum(free // _slot(level) * _slot(level) for free in self._free) for level in range(LAST_LEVEL + 1)
        ]
        self._levels = {job: self._level_below(share) for job, share in shares.items()}
        self._counts = Counter(self._levels.values())
        places = {job: place for place, job in enumerate(self._levels)}
        while not self._fits():
            job = min(places, key=lambda one: (self._levels[one], -places[one]))
            smaller = self._levels[job] + 1
            self._move(job, smaller if self._share(smaller) > 0 else LAST_LEVEL + 1)

    @property
    def spare_milli(self) -> int:
        """Spare capacity over all GPUs."""
        used = sum(count * _slot(level) for level, count in self._counts.items())
        return (sum(self._free) - used) * FULL_GPU_MILLI // _WHOLE

    @property
    def gpus(self) -> Mapping[Job, int]:
        """The GPU of every job that holds a share, in descending order of shares."""
        free = list(self._free)
        placed: dict[Job, int] = {}
        gpu = before = 0
        for job in sorted(self._levels, key=lambda one: self._levels[one]):
            level = self._levels[job]
            if level > LAST_LEVEL:
                break
            if level != before:
                gpu, before = 0, level
            while free[gpu] < _slot(level):
                gpu += 1
            free[gpu] -= _slot(level)
            placed[job] = gpu
        return placed

    def share_milli(self, job: Job) -> int:
        """Returns the share of a job; 0 for a job that was not asked for."""
        return self._share(self._levels.get(job, LAST_LEVEL + 1))

    def fitting_milli(self, job: Job, wanted_milli: int) -> int | None:
        """Returns the smallest share from ``wanted_milli`` on to which a job can grow; None if none fits."""
        shares = ((level, self._share(level)) for level in range(LAST_LEVEL, -1, -1))
        level = next((level for level, share in shares if share >= max(wanted_milli, 1)), None)
        if level is None:
            return None
        before = self._levels[job]
        self._move(job, level)
        fits = self._fits()
        self._move(job, before)
        return self._share(level) if fits else None

    def grow_job(self, job: Job, share_milli: int) -> None:
        """Gives a job a share that ``fitting_milli`` returned."""
        self._move(job, self._level_below(share_milli))

    def _fits(self) -> bool:
        """Returns whether, for each size, the slots of that size or more fit on the GPUs."""
        used = accumulate(self._counts[level] * _slot(level) for level in range(LAST_LEVEL + 1))
        return all(slots <= limit for slots, limit in zip(used, self._limits, strict=True))

    def _move(self, job: Job, level: int) -> None:
        self._counts[self._levels[job]] -= 1
        self._levels[job] = level
        self._counts[level] += 1

    def _share(self, level: int) -> int:
        return self._steps.floor_share(share_of_level(level)) if level <= LAST_LEVEL else 0

    def _level_below(self, share_milli: int) -> int:
        """Returns the level of the largest slot not above a share; the level after the last for none."""
        fitting = (level for level in range(LAST_LEVEL + 1) if 0 < self._share(level) <= share_milli)
        return next(fitting, LAST_LEVEL + 1)


def _slot(level: int) -> int:
    """Returns the size of a level's slot, in slots of the smallest size; 0 for the level after the last."""
    return _WHOLE >> level if level <= LAST_LEVEL else 0


class BestFit:
    """Granted shares of any size that the backend can grant, which may still grow into spare capacity.

    The largest job comes first, each on the GPU with the least left of those on which it fits. A job that
    fits on none is cut to what the emptiest GPU has left: no job runs on two GPUs.
    """

    def __init__(
        self, shares: Mapping[Job, int], gpus_milli: Sequence[int], steps: ShareSteps, *, pooled: bool = False
    ) -> None:
        """Packs the shares.

        Args:
            shares: the share asked for by each job, in thousandths of a GPU.
            gpus_milli: capacity of each GPU, 0 to 1000.
            steps: what can be granted.
            pooled: the only entry of ``gpus_milli`` is a pool, and no job is bound to a GPU.

        Raises:
            ValueError: as ``round_down``.
        """
        self._steps, self._pooled = steps, pooled
        self._free = [steps.floor_to_step(milli) for milli in gpus_milli]
        self._shares = round_down(shares, steps, sum(self._free))
        self._gpus: dict[Job, int] = {}
        for job in sorted(self._shares, key=lambda one: -self._shares[one]):
            if self._shares[job] == 0:
                break
            gpu = self._best_gpu(self._shares[job])
            if gpu is None:
                gpu = max(range(len(self._free)), key=lambda one: (self._free[one], -one))
                self._shares[job] = steps.floor_share(self._free[gpu])
            self._put(job, gpu, self._shares[job])

    @property
    def spare_milli(self) -> int:
        """Spare capacity over all GPUs."""
        return sum(self._free)

    @property
    def gpus(self) -> Mapping[Job, int]:
        """The GPU of every job that holds a share; empty for a pool."""
        return {} if self._pooled else dict(self._gpus)

    def share_milli(self, job: Job) -> int:
        """Returns the share of a job; 0 for a job that was not asked for."""
        return self._shares.get(job, 0)

    def fitting_milli(self, job: Job, wanted_milli: int) -> int | None:
        """Returns the smallest share from ``wanted_milli`` on to which a job can grow; None if none fits.

        The job may have to move to another GPU for it.
        """
        share = self._steps.ceil_share(wanted_milli)
        most = max((self._free_for(job, gpu) for gpu in range(len(self._free))), default=0)
        return share if share <= min(most, FULL_GPU_MILLI) else None

    def grow_job(self, job: Job, share_milli: int) -> None:
        """Gives a job a share that ``fitting_milli`` returned; it moves only where it must."""
        here = self._gpus.get(job)
        there = here if here is not None and share_milli <= self._free_for(job, here) else None
        if there is None:
            there = self._best_gpu(share_milli)
        if there is None:
            raise ValueError(f"a share of {share_milli} thousandths fits on no GPU")
        if here is not None:
            self._free[here] += self._shares[job]
        self._put(job, there, share_milli)

    def _free_for(self, job: Job, gpu: int) -> int:
        own = self._shares[job] if self._gpus.get(job) == gpu else 0
        return self._free[gpu] + own

    def _best_gpu(self, share_milli: int) -> int | None:
        fitting = [gpu for gpu, free in enumerate(self._free) if free >= share_milli]
        return min(fitting, key=lambda gpu: (self._free[gpu], gpu), default=None)

    def _put(self, job: Job, gpu: int, share_milli: int) -> None:
        self._shares[job] = share_milli
        self._free[gpu] -= share_milli
        if share_milli > 0:
            self._gpus[job] = gpu


class Packing(StrEnum):
    """Method of packing shares onto GPUs.

    ``pool``: none; all GPUs are one pool, as the cores of a CPU machine are. ``quantised``: inverse powers
    of two, as in the paper. ``best-fit``: in steps of the share backend.
    """

    POOL = "pool"
    QUANTISED = "quantised"
    BEST_FIT = "best-fit"


Placed = Halves | BestFit
"""Granted shares that may still grow into spare capacity, and the GPU of each job."""


def pack_shares(
    packing: Packing,
    shares: Mapping[Job, int],
    *,
    capacity_milli: int,
    held_milli: Sequence[int],
    steps: ShareSteps,
) -> Placed:
    """Rounds shares down to what can be granted, and packs them.

    Args:
        packing: method.
        shares: the share asked for by each job, in thousandths of a GPU; equal ones keep their order.
        capacity_milli: total over all GPUs; a part of a GPU is the last one's.
        held_milli: shares that others hold and keep, such as the preparation.
        steps: what can be granted.

    Raises:
        ValueError: a negative share.
    """
    match packing:
        case Packing.POOL:
            return BestFit(shares, [max(capacity_milli - sum(held_milli), 0)], steps, pooled=True)
        case Packing.QUANTISED:
            return Halves(shares, free_milli_by_gpu(capacity_milli, held_milli), steps)
        case Packing.BEST_FIT:
            return BestFit(shares, free_milli_by_gpu(capacity_milli, held_milli), steps)


def free_milli_by_gpu(capacity_milli: int, held_milli: Sequence[int]) -> tuple[int, ...]:
    """Returns the share of each GPU that is left beside what others hold.

    The largest holder comes first, on the GPU with the least left of those on which it fits, so that the
    other GPUs stay whole. Only a holder that fits on none is spread, over the emptiest.
    """
    whole, part = divmod(capacity_milli, FULL_GPU_MILLI)
    free = [FULL_GPU_MILLI] * whole + [part] * (part > 0)
    for held in sorted(held_milli, reverse=True):
        left = held
        while left > 0 and any(free):
            fitting = [gpu for gpu, milli in enumerate(free) if milli >= left]
            gpu = min(fitting, key=lambda one: (free[one], -one), default=None)
            if gpu is None:
                gpu = max(range(len(free)), key=lambda one: (free[one], one))
            taken = min(left, free[gpu])
            free[gpu] -= taken
            left -= taken
    return tuple(free)
