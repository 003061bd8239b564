"""Our improvement of Algorithm 1.

Algorithm 1 removes a worker whose application would be late; this solver throttles the worker instead, to the
largest share of the processor at which the application keeps its deadline. Algorithm 1 removes only the
slowest worker; this solver tries each, starting from the whole cluster and from the best single worker.
Algorithm 1 rounds shards to samples; this solver gives whole steps.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf

from ekya.core.units import FULL_GPU_MILLI
from ekya.fleet.policy.assignment import NodePart
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


class WholeSteps:
    """Computes the best shards for given workers, and the estimated epoch.

    Compute times of batches are cached, because they do not depend on the set of workers.
    """

    def __init__(self, task: EdgeTask) -> None:
        self._task = task
        self._known: dict[tuple[str, int, int], list[float]] = {}

    def shortest_epoch(self, workers: Sequence[Chosen], below_s: float = inf) -> Found:
        """Returns the shortest epoch of a set of workers; no parts and infinity if not below ``below_s``."""
        task, samples = self._task, self._task.samples
        trainings = [training_on(*one) for one in workers]
        updates_s = task.estimates.update_s(trainings, task.parameter_server)
        batches_s = [
            [each + update_s for each in self._times_s(*one)]
            for one, update_s in zip(workers, updates_s, strict=True)
        ]
        if below_s < inf and sum(_done(each, below_s) for each in batches_s) < samples:
            return (), inf
        low_s, high_s = 0.0, min(-(-samples // len(each)) * each[-1] for each in batches_s)
        for _ in range(_HALVINGS):
            middle_s = (low_s + high_s) / 2
            enough = sum(_done(each, middle_s) for each in batches_s) >= samples
            low_s, high_s = (low_s, middle_s) if enough else (middle_s, high_s)
        parts = []
        for (node, batch, share), each in zip(workers, batches_s, strict=True):
            given = min(_done(each, high_s), samples)
            samples -= given
            if given:
                parts.append(NodePart(node.name, workers=1, chunks=given, batch=batch, share_milli=share))
        return tuple(parts), high_s

    def _times_s(self, node: Node, batch: int, share: int) -> list[float]:
        """Returns the seconds in which batches of 1, 2, ... samples are computed; non-decreasing."""
        key = node.name, batch, share
        if key not in self._known:
            compute_s = self._task.estimates.compute_s
            times = (size * compute_s(training_on(node, size, share)) for size in range(1, batch + 1))
            self._known[key] = list(accumulate(times, max))
        return self._known[key]


def _done(batches_s: Sequence[float], within_s: float) -> int:
    """Returns the samples that a worker can train in a time: whole steps, and a smaller last batch.

    Args:
        batches_s: times of batches of 1, 2, ... samples, with an update.
        within_s: the time.
    """
    steps = int(within_s / batches_s[-1] * _ROUNDED)
    rest_s = within_s - steps * batches_s[-1]
    return steps * len(batches_s) + bisect_right(batches_s, rest_s, hi=len(batches_s) - 1)


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
        best, there = steps.shortest_epoch(chosen), chosen
        while len(there) > 1:
            smaller = [[one for one in there if one is not gone] for gone in there]
            if (found := _shorter(steps, smaller, best[1])) is None:
                break
            best, there = found
        return best

    def _grown(self, steps: WholeSteps, chosen: list[Chosen]) -> Found:
        """Starts with the best single worker and adds one at a time, as long as the epoch gets shorter."""
        there: list[Chosen] = []
        best: Found = ((), inf)
        while len(there) < len(chosen):
            larger = [[*there, one] for one in chosen if one not in there]
            if (found := _shorter(steps, larger, best[1])) is None:
                break
            best, there = found
        return best


def _shorter(
    steps: WholeSteps, sets: list[list[Chosen]], below_s: float
) -> tuple[Found, list[Chosen]] | None:
    """Returns the set with the shortest epoch below a time; None where there is none."""
    best = None
    for one in sets:
        found = steps.shortest_epoch(one, below_s)
        if found[1] < below_s:
            best, below_s = (found, one), found[1]
    return best
