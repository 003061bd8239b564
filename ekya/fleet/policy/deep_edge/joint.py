"""Our improvement of Algorithm 1.

Algorithm 1 removes a worker whose application would be late; this solver throttles the worker instead, to the
largest share of the processor at which the application keeps its deadline. Algorithm 1 removes only the
slowest worker; this solver tries each, starting from the whole cluster and from the best single worker.
Algorithm 1 rounds shards to samples; this solver gives whole steps.
"""

from dataclasses import dataclass
from math import inf

from ekya.core.units import FULL_GPU_MILLI
from ekya.fleet.policy.assignment import Part
from ekya.fleet.policy.deep_edge.steps import Chosen, Steps
from ekya.fleet.policy.deep_edge.task import NO_MEMORY, EdgePlan, EdgeTask
from ekya.fleet.policy.places import Node

_Found = tuple[tuple[Part, ...], float]


@dataclass(frozen=True, slots=True)
class Joint:
    """Chooses workers, shares, batches and shards together.

    Attributes:
        shares_milli: to which a worker can be throttled, largest first; only 1000: no throttling.
        searches: whether workers are chosen by the length of an epoch; otherwise all admissible ones stay.
    """

    shares_milli: tuple[int, ...] = tuple(range(FULL_GPU_MILLI, 0, -100))
    searches: bool = True

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
        steps = Steps(task)
        best = self._shrunk(steps, chosen)
        if self.searches:
            best = min(best, self._grown(steps, chosen), key=lambda found: found[1])
        parts, epoch_s = best
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

    def _shrunk(self, steps: Steps, chosen: list[Chosen]) -> _Found:
        """Starts with all workers and removes one at a time, as long as the epoch gets shorter."""
        best, there = steps.of(chosen), chosen
        while self.searches and len(there) > 1:
            smaller = [[one for one in there if one is not gone] for gone in there]
            found = [steps.of(some) for some in smaller]
            at = min(range(len(found)), key=lambda place: found[place][1])
            if found[at][1] >= best[1]:
                break
            best, there = found[at], smaller[at]
        return best

    def _grown(self, steps: Steps, chosen: list[Chosen]) -> _Found:
        """Starts with the best single worker and adds one at a time, as long as the epoch gets shorter."""
        there: list[Chosen] = []
        best: _Found = ((), inf)
        while len(there) < len(chosen):
            larger = [[*there, one] for one in chosen if one not in there]
            found = [steps.of(some) for some in larger]
            at = min(range(len(found)), key=lambda place: found[place][1])
            if found[at][1] >= best[1]:
                break
            best, there = found[at], larger[at]
        return best
