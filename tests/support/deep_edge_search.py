"""Exhaustive search of Deep-Edge's plans in small clusters, and clusters whose true states are known."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import inf

from ekya.core.units import FULL_GPU_MILLI
from ekya.fleet.policy.deep_edge.joint import Chosen, WholeSteps
from ekya.fleet.policy.deep_edge.task import EdgePlan, EdgeTask
from ekya.fleet.policy.places import Node, NodeName, NodeState, Places


@dataclass(frozen=True, slots=True)
class Force:
    """Tries every set of workers in every combination of batches and shares.

    Attributes:
        batches: to try, beside the largest that fits.
        shares_milli: to which a worker can be throttled.
    """

    batches: tuple[int, ...] = (4, 8, 16, 24)
    shares_milli: tuple[int, ...] = (FULL_GPU_MILLI,)

    def __call__(self, task: EdgeTask) -> EdgePlan:
        """Returns the plan with the shortest epoch."""
        best, steps = EdgePlan((), inf), WholeSteps(task)
        for some in product(*([None, *self._allowed(task, node)] for node in task.workers)):
            chosen = [one for one in some if one is not None]
            if chosen:
                parts, epoch_s = steps.shortest_epoch(chosen)
                if epoch_s < best.epoch_s:
                    best = EdgePlan(parts, epoch_s)
        kept = {part.node for part in best.parts}
        left_out = {node.name: "no set with it is faster" for node in task.workers if node.name not in kept}
        return EdgePlan(best.parts, best.epoch_s, left_out)

    def _allowed(self, task: EdgeTask, node: Node) -> Iterator[Chosen]:
        """Yields the batches and shares at which a worker keeps its deadlines."""
        for share in self.shares_milli:
            largest = task.max_batch(node, share)
            for batch in sorted({*(size for size in self.batches if size <= largest), largest} - {0}):
                if task.pressure(node, batch, share) is None:
                    yield node, batch, share


def as_it_is(places: Places, truth: Mapping[NodeName, NodeState]) -> Places:
    """Returns the machines with their true states instead of the measured ones."""
    return replace(
        places, nodes={name: replace(node, state=truth[name]) for name, node in places.nodes.items()}
    )
