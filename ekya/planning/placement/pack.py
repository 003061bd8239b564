"""Packs the shares of a plan onto GPUs (paper §5, placement onto GPUs)."""

from collections.abc import Mapping, Sequence
from enum import StrEnum

from ekya.core.shares import Job
from ekya.core.units import FULL_GPU_MILLI
from ekya.planning.placement.best_fit import BestFit
from ekya.planning.placement.halving import Halves
from ekya.planning.placement.rounding import Steps


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
    steps: Steps,
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
