"""Shares per job: fair starts, and the minimum that a_MIN and the latency limits need."""

from collections.abc import Collection, Mapping
from heapq import heapify, heappop, heapreplace
from types import MappingProxyType

import numpy as np

from ekya.core.plan import Phase
from ekya.core.shares import Job, Work
from ekya.core.units import FULL_GPU_MILLI, StreamId
from ekya.core.view import WindowView
from ekya.planning.schedulers.pick import StreamChoices, watching_milli
from ekya.planning.schedulers.tables import Ints, floor_quanta


def choices_by_stream(view: WindowView) -> dict[StreamId, StreamChoices]:
    """Returns PickConfigs for every stream, in the order of their ids."""
    return {stream.stream: StreamChoices(view, stream) for stream in view.streams}


def inference_jobs(view: WindowView) -> list[Job]:
    """Returns the inference of every stream, sorted."""
    return [Job(stream.stream, Work.INFERENCE) for stream in view.streams]


def shares_of(phase: Phase) -> dict[Job, int]:
    """Returns the shares of a phase by job, zeros included, in the order of the jobs."""
    shares = {Job(a.stream, Work.INFERENCE): a.inference_share_milli for a in phase.assignments}
    shares |= {Job(a.stream, Work.RETRAINING): a.retrain_share_milli for a in phase.assignments}
    return dict(sorted(shares.items()))


def largest_share_milli(quantum_milli: int) -> int:
    """Returns the largest share that one job can use: one GPU, rounded down to δ."""
    return FULL_GPU_MILLI // quantum_milli * quantum_milli


def fair_shares_milli(capacity_milli: int, quantum_milli: int, count: int) -> list[int]:
    """Returns ``count`` equal shares in multiples of δ; the first ones get the quanta left over."""
    if count == 0:
        return []
    each, rest = divmod(capacity_milli // quantum_milli, count)
    return [(each + (index < rest)) * quantum_milli for index in range(count)]


def equal_shares(view: WindowView, jobs: Collection[Job]) -> dict[Job, int]:
    """Returns equal shares of the whole capacity, of one GPU at most."""
    fair = fair_shares_milli(view.capacity_milli, view.quantum_milli, len(jobs))
    largest = largest_share_milli(view.quantum_milli)
    return {job: min(share, largest) for job, share in zip(jobs, fair, strict=True)}


def kept_floors(view: WindowView, capacity_milli: int, floors: Ints | None = None) -> dict[Job, int]:
    """Returns the inference shares that keep a_MIN and the latency limits, for as many streams as possible.

    Streams that need least come first, so that the largest number is kept; a stream whose constraints no
    share keeps has a floor of 0 (``tables.floor_quanta``).

    Args:
        view: the streams.
        capacity_milli: for all of them.
        floors: (S,) floors in quanta, where they are known already.
    """
    if floors is None:
        floors = floor_quanta(view, np.array([stream.accuracy for stream in view.streams])[:, None])[:, 0]
    kept: dict[Job, int] = {}
    left = capacity_milli
    floors_milli = (floors * view.quantum_milli).tolist()
    for floor, job in sorted(zip(floors_milli, inference_jobs(view), strict=True)):
        if floor <= left:
            kept[job] = floor
            left -= floor
    return kept


def inference_floors(view: WindowView) -> dict[Job, int]:
    """Returns each stream's inference share before all others: enough to analyse one frame a second."""
    return {job: watching_milli(view, s) for job, s in zip(inference_jobs(view), view.streams, strict=True)}


def left_by_inference(view: WindowView, floors: Mapping[Job, int] = MappingProxyType({})) -> int:
    """Returns the share that is left where inference of every stream has its floors, in multiples of δ.

    These are a_MIN and the latency limit where they can be kept, one frame a second, and ``floors``.
    """
    kept, watching = kept_floors(view, view.capacity_milli), inference_floors(view)
    needed = sum(max(kept.get(job, 0), floors.get(job, 0), floor) for job, floor in watching.items())
    return max(view.capacity_milli - needed, 0) // view.quantum_milli * view.quantum_milli


def with_floors(
    shares: Mapping[Job, int], floors: Mapping[Job, int], capacity_milli: int, quantum_milli: int
) -> dict[Job, int]:
    """Returns the shares where no job has less than its floor.

    Jobs below their floor are lifted from what is left, then from the jobs with most to spare. Where the
    floors do not fit together, each is lowered by the same part, in whole quanta.

    Args:
        shares: of jobs, in multiples of δ.
        floors: of some of these jobs, in multiples of δ; floors of other jobs are ignored.
        capacity_milli: for all of these jobs.
        quantum_milli: δ.
    """
    kept = {job: floors[job] for job in shares if floors.get(job, 0) > 0}
    if all(shares[job] >= floor for job, floor in kept.items()):
        return dict(shares)
    kept = _fitting(kept, max(capacity_milli, 0) // quantum_milli, quantum_milli)
    lifted = dict(shares)
    left_milli = (capacity_milli - sum(shares.values())) // quantum_milli * quantum_milli
    for job, floor in kept.items():
        more_milli = min(max(floor - lifted[job], 0), max(left_milli, 0))
        lifted[job] += more_milli
        left_milli -= more_milli
    lifted = lift_to_floors(lifted, kept, quantum_milli)
    return {job: lifted[job] for job in shares}


def _fitting(floors: Mapping[Job, int], quanta: int, quantum_milli: int) -> dict[Job, int]:
    """Returns the floors, or equal parts of them; quanta that rounding leaves go to those that lack most."""
    wanted = {job: floor // quantum_milli for job, floor in floors.items()}
    total = sum(wanted.values())
    if total <= quanta:
        return dict(floors)
    given = {job: quanta * want // total for job, want in wanted.items()}
    lacking = sorted(wanted, key=lambda job: (given[job] - quanta * wanted[job] / total, job))
    for job in lacking[: quanta - sum(given.values())]:
        given[job] += 1
    return {job: count * quantum_milli for job, count in given.items()}


def lift_to_floors(
    shares: Mapping[Job, int], floors: Mapping[Job, int], quantum_milli: int
) -> dict[Job, int]:
    """Moves quanta from the jobs with most to spare to those below their floor; the sum stays."""
    lifted = dict(sorted(shares.items()))
    # Negative, since a heap gives the least first: here the job with most to spare.
    donors = [
        (floors.get(job, 0) - share, job)
        for job, share in lifted.items()
        if share - floors.get(job, 0) >= quantum_milli
    ]
    heapify(donors)
    for job in sorted(floors):
        while lifted[job] < floors[job] and donors:
            spare, donor = donors[0]
            lifted[donor] -= quantum_milli
            lifted[job] += quantum_milli
            if spare + quantum_milli <= -quantum_milli:
                heapreplace(donors, (spare + quantum_milli, donor))
            else:
                heappop(donors)
    return lifted
