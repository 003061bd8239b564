"""Our improvement of Algorithm 1.

Algorithm 1 removes a worker whose application would be late; this solver throttles the worker instead, to the
largest share of the processor at which the application keeps its deadline. Algorithm 1 removes only the
slowest worker; this solver tries each (of more than eight, the slowest and those that push most often),
starting from the whole cluster and from the best single worker.
Algorithm 1 rounds shards to samples; this solver gives whole steps.
"""

from dataclasses import dataclass
from math import inf

from ekya.core.units import FULL_GPU_MILLI
from ekya.fleet.policy.deep_edge.steps import Chosen, Found, WholeSteps
from ekya.fleet.policy.deep_edge.task import NO_MEMORY, EdgePlan, EdgeTask
from ekya.fleet.policy.places import Node

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
