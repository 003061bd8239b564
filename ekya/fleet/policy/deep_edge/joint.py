"""Our improvement of Algorithm 1.

Algorithm 1 removes a worker whose application would be late; this solver throttles the worker instead, to the
largest share of the processor at which the application keeps its deadline. Algorithm 1 removes only the
slowest worker; this solver tries each (of more than eight, the slowest and those that push most often),
starting from the whole cluster and from the best single worker.
Algorithm 1 rounds shards to samples; this solver gives whole steps.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf

from ekya.core.units import FULL_GPU_MILLI
from ekya.fleet.policy.assignment import NodePart
from ekya.fleet.policy.deep_edge.estimates import EdgeTraining
from ekya.fleet.policy.deep_edge.task import NO_MEMORY, EdgePlan, EdgeTask, training_on
from ekya.fleet.policy.places import Node

Chosen = tuple[Node, int, int]
"""A worker, its batch and its share."""

Found = tuple[tuple[NodePart, ...], float]
"""Parts with a shard, and the epoch in seconds."""

_HALVINGS = 40
"""Bisections in the search for the shortest epoch, to less than a billionth of the initial range."""

_ROUNDED = 1 + 1e-12
"""Keeps rounding from losing a step where a time is a multiple of a step."""

_NEARER = 0.97
"""Part of a time that is tried first, in the search for one at which not all samples are done."""


class WholeSteps:
    """Computes the best shards for given workers, and the estimated epoch.

    Compute times of batches are cached, because they do not depend on the set of workers.
    """

    def __init__(self, task: EdgeTask) -> None:
        self._task = task
        self._known: dict[tuple[str, int, int], tuple[EdgeTraining, list[float]]] = {}

    def shortest_epochs(self, sets: Sequence[Sequence[Chosen]], below_s: float = inf) -> list[Found]:
        """Returns the shortest epoch of sets of workers, equally many in each.

        Those that are not below ``below_s`` or an earlier set's have no parts and infinity.
        """
        trainings = [[self._of(*one)[0] for one in workers] for workers in sets]
        founds = []
        for workers, updates_s in zip(sets, self._task.updates_of(trainings), strict=True):
            founds.append(self._found(workers, updates_s, below_s))
            below_s = min(below_s, founds[-1][1])
        return founds

    def _found(self, workers: Sequence[Chosen], updates_s: Sequence[float], below_s: float) -> Found:
        samples, computing_s = self._task.samples, [self._of(*one)[1] for one in workers]
        if below_s < inf and samples > sum(
            _done(times, below_s, update_s) for times, update_s in zip(computing_s, updates_s, strict=True)
        ):
            return (), inf
        batches_s = [
            [each + update_s for each in times]
            for times, update_s in zip(computing_s, updates_s, strict=True)
        ]
        epoch_s, done = _shortest(batches_s, samples, below_s)
        parts = []
        for (node, batch, share), most in zip(workers, done, strict=True):
            given = min(most, samples)
            samples -= given
            if given:
                parts.append(NodePart(node.name, workers=1, chunks=given, batch=batch, share_milli=share))
        return tuple(parts), epoch_s

    def sample_s(self, worker: Chosen) -> float:
        """Returns the compute time of a sample in a whole batch."""
        return self._of(*worker)[1][-1] / worker[1]

    def _of(self, node: Node, batch: int, share: int) -> tuple[EdgeTraining, list[float]]:
        """Returns a worker's training, and the seconds of batches of 1, 2, ... samples; non-decreasing."""
        key = node.name, batch, share
        if key not in self._known:
            compute_s = self._task.estimates.compute_s
            sizes = range(1, batch + 1)
            times = (size * compute_s(training_on(node, size, share)) for size in sizes)
            self._known[key] = training_on(node, batch, share), list(accumulate(times, max))
        return self._known[key]


def _shortest(batches_s: Sequence[Sequence[float]], samples: int, below_s: float) -> tuple[float, list[int]]:
    """Returns the shortest time in which the workers train all samples, and the samples of each by then.

    It is found by bisection, to the same bit; where that leads to follows from the end of the last sample, so
    that hardly any time is tried.

    Args:
        batches_s: times of a worker's batches of 1, 2, ... samples.
        samples: of all workers together.
        below_s: a time in which they train them, or infinity.
    """

    def done(within_s: float) -> list[int]:
        return [_done(each, within_s) for each in batches_s]

    if not samples:
        return 0.0, [0] * len(batches_s)
    alone_s = min(-(-samples // len(each)) * each[-1] for each in batches_s)
    # The tolerance covers rounding errors, here and of ``below_s``.
    later_s, nearer = min(alone_s, below_s) * (1 + 1e-9), _NEARER
    while sum(before := done(nearer * later_s)) >= samples:
        later_s, nearer = nearer * later_s, nearer**2
    ends_s = sorted(
        _end_s(each, count)
        for each, begin, end in zip(batches_s, before, done(later_s), strict=True)
        for count in range(begin, end)
    )
    end_s = ends_s[samples - sum(before) - 1]
    low_s, high_s = _bisected(alone_s, lambda within_s: within_s >= end_s)
    counts = done(high_s)
    if sum(done(low_s)) < samples <= sum(counts):
        return high_s, counts
    # Rounding errors of the end may be as large as the last halves.
    _, high_s = _bisected(alone_s, lambda within_s: sum(done(within_s)) >= samples)
    return high_s, done(high_s)


def _end_s(batches_s: Sequence[float], before: int) -> float:
    """Returns when ``_done`` counts one sample more."""
    steps, more = divmod(before + 1, len(batches_s))
    return steps * batches_s[-1] + batches_s[more - 1] if more else steps * batches_s[-1] / _ROUNDED


def _bisected(high_s: float, enough: Callable[[float], bool]) -> tuple[float, float]:
    """Returns the range of times in which the shortest is that is enough."""
    low_s = 0.0
    for _ in range(_HALVINGS):
        middle_s = (low_s + high_s) / 2
        low_s, high_s = (low_s, middle_s) if enough(middle_s) else (middle_s, high_s)
    return low_s, high_s


def _done(batches_s: Sequence[float], within_s: float, update_s: float = 0.0) -> int:
    """Returns the samples that a worker can train in a time: whole steps, and a smaller last batch.

    Args:
        batches_s: times of batches of 1, 2, ... samples.
        within_s: the time.
        update_s: of an update, if the times of batches are without.
    """
    step_s = batches_s[-1] + update_s
    steps = int(within_s / step_s * _ROUNDED)
    rest_s = within_s - steps * step_s - update_s
    return steps * len(batches_s) + bisect_right(batches_s, rest_s, hi=len(batches_s) - 1)


_ENDS = 4
"""Workers from the end of an order that are tried in a round, where there are many."""


@dataclass(frozen=True, slots=True)
class Joint:
    """Chooses workers, shares, batches and shards together.

    Attributes:
        shares_milli: to which a worker can be throttled, largest first; only 1000: no throttling.
    """

    shares_milli: tuple[int, ...] = tuple(range(FULL_GPU_MILLI, 0, -100))

    def __call__(self, task: EdgeTask) -> EdgePlan:
        """Returns the plan with the shortest epoch that it finds."""
        chosen, left_out = [], {}
        for node in task.workers:
            found = self._held(task, node)
            if isinstance(found, str):
                left_out[node.name] = found
            else:
                chosen.append(found)
        if not chosen:
            return EdgePlan((), inf, left_out)
        steps = WholeSteps(task)
        tried: list[Found] = [self._shrunk(steps, chosen), self._grown(steps, chosen)]
        parts, epoch_s = min(tried, key=lambda one: one[1])
        kept = {part.node for part in parts}
        left_out |= {
            node.name: "without it an epoch is shorter" for node, _, _ in chosen if node.name not in kept
        }
        return EdgePlan(parts, epoch_s, left_out)

    def _held(self, task: EdgeTask, node: Node) -> Chosen | str:
        """Returns a worker at the largest share that keeps its deadlines, or the reason why there is none."""
        why = NO_MEMORY
        for share in self.shares_milli:
            batch = task.max_batch(node, share)
            if not batch:
                continue
            late = task.pressure(node, batch, share)
            if late is None:
                return node, batch, share
            why = late
        return why

    def _shrunk(self, steps: WholeSteps, chosen: list[Chosen]) -> Found:
        """Starts with all workers and removes one at a time, as long as the epoch gets shorter."""
        (best,), there = steps.shortest_epochs([chosen]), chosen
        while len(there) > 1:
            tried = _promising(steps, there, fast=False)
            smaller = [[one for one in there if one is not gone] for gone in tried]
            if (found := _shorter(steps, smaller, best[1])) is None:
                break
            best, there = found
        return best

    def _grown(self, steps: WholeSteps, chosen: list[Chosen]) -> Found:
        """Starts with the best single worker and adds one at a time, as long as the epoch gets shorter."""
        there: list[Chosen] = []
        best: Found = ((), inf)
        while len(there) < len(chosen):
            tried = _promising(steps, [one for one in chosen if one not in there], fast=True)
            larger = [[*there, one] for one in tried]
            if (found := _shorter(steps, larger, best[1])) is None:
                break
            best, there = found
        return best


def _promising(steps: WholeSteps, workers: list[Chosen], fast: bool) -> list[Chosen]:
    """Returns the workers to add or, if not ``fast``, to remove: of many those at the ends of two orders.

    Those are the compute time of a sample, and the batch: with small batches a worker pushes often, which
    makes the updates of the others longer.
    """
    if len(workers) <= 2 * _ENDS:
        return workers
    by_time = sorted(workers, key=steps.sample_s, reverse=not fast)[:_ENDS]
    by_batch = sorted(workers, key=lambda one: one[1], reverse=fast)[:_ENDS]
    names = {node.name for node, _, _ in (*by_time, *by_batch)}
    return [one for one in workers if one[0].name in names]


def _shorter(
    steps: WholeSteps, sets: list[list[Chosen]], below_s: float
) -> tuple[Found, list[Chosen]] | None:
    """Returns the set with the shortest epoch below a time; None where there is none."""
    best = min(zip(steps.shortest_epochs(sets, below_s), sets, strict=True), key=lambda one: one[0][1])
    return best if best[0][1] < below_s else None
