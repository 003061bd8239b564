"""Gives the shares that rounding left over to the jobs that gain most."""

import heapq
from collections.abc import Iterator, Mapping
from typing import Protocol

from ekya.core.units import FULL_GPU_MILLI, StreamId
from ekya.planning.schedulers.allocation import Job, JobKind
from ekya.planning.schedulers.pick import SAME


class Grants(Protocol):
    """Granted shares, which may still grow into spare capacity."""

    @property
    def spare_milli(self) -> int:
        """Spare capacity in thousandths of a GPU."""

    @property
    def gpus(self) -> Mapping[Job, int]:
        """The GPU of every job that holds a share; empty where all GPUs are one pool."""

    def share_milli(self, job: Job) -> int:
        """Returns the share of a job; 0 for a job that was not asked for."""

    def fitting_milli(self, job: Job, wanted_milli: int) -> int | None:
        """Returns the smallest share from ``wanted_milli`` on to which a job can grow; None if none fits."""

    def grow(self, job: Job, share_milli: int) -> None:
        """Gives a job a share that ``fitting_milli`` returned."""


class Growing(Protocol):
    """A stream whose jobs may get more."""

    @property
    def kinds(self) -> tuple[JobKind, ...]:
        """Kinds of its jobs that may grow."""

    @property
    def inference_stops(self) -> tuple[int, ...]:
        """Inference shares at which another λ can keep up."""

    @property
    def weight(self) -> float:
        """Weight of the stream."""

    def value(self, retrain_share_milli: int, inference_share_milli: int) -> float:
        """Returns the stream's part of the objective at these shares."""


_Growth = tuple[float, float, Job, int]
"""Heap entry: rank, -gain per thousandth, job, the share that it grows to."""


def give_out(
    streams: Mapping[StreamId, Growing], grants: Grants, grain_milli: int, *, worst_first: bool
) -> None:
    """Grows the job that gains most per thousandth, until no job gains.

    A job may grow by several steps together, as a λ can need them. A growth changes the gains of one
    stream's jobs only, so only these are computed anew; those of other jobs are when they come next and no
    longer fit.

    Args:
        streams: every stream with a job that may grow.
        grants: current shares; modified, as shares grow.
        grain_milli: spacing of the larger shares that are tried.
        worst_first: of the streams that gain at all, the worst comes first, as max-min requires.
    """
    heap: list[_Growth] = []
    current: dict[Job, _Growth] = {}

    def look(stream: StreamId) -> None:
        for kind in streams[stream].kinds:
            job = Job(stream, kind)
            current.pop(job, None)
            entry = _best_growth(job, streams[stream], grants, grain_milli, worst_first)
            if entry is not None:
                current[job] = entry
                heapq.heappush(heap, entry)

    if grants.spare_milli == 0:
        return
    for stream in streams:
        look(stream)
    while heap:
        entry = heapq.heappop(heap)
        _, _, job, share = entry
        if current.get(job) != entry:
            continue
        if grants.fitting_milli(job, share) == share:
            grants.grow(job, share)
        look(job.stream)


def _best_growth(
    job: Job, stream: Growing, grants: Grants, grain_milli: int, worst_first: bool
) -> _Growth | None:
    """Returns the growth that gains most per thousandth; None if none gains."""
    retrain = grants.share_milli(Job(job.stream, JobKind.RETRAINING))
    inference = grants.share_milli(Job(job.stream, JobKind.INFERENCE))
    is_inference = job.kind is JobKind.INFERENCE
    share, stops = (inference, stream.inference_stops) if is_inference else (retrain, ())
    before = stream.value(retrain, inference)
    best: _Growth | None = None
    best_rate = SAME
    for larger in _larger_shares(job, share, stops, grants, grain_milli):
        after = stream.value(retrain, larger) if is_inference else stream.value(larger, inference)
        rate = stream.weight * (after - before) / (larger - share)
        if rate > best_rate + SAME:
            best, best_rate = (before if worst_first else 0.0, -rate, job, larger), rate
    return best


def _larger_shares(
    job: Job, share: int, stops: tuple[int, ...], grants: Grants, grain_milli: int
) -> Iterator[int]:
    grain = grain_milli
    while grain > 1 and grants.fitting_milli(job, share + grain) is None:
        grain //= 2
    wanted = {stop for stop in stops if share < stop} | set(range(share + grain, FULL_GPU_MILLI + 1, grain))
    last = share
    for least in sorted(wanted):
        if least <= last:
            continue
        larger = grants.fitting_milli(job, least)
        if larger is None:
            return
        yield larger
        last = larger
