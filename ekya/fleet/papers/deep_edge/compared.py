"""Solvers with which Deep-Edge is compared: fairness (§V.C), and exhaustive search in small clusters."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import inf

from ekya.core.units import FULL_GPU_MILLI
from ekya.fleet.policy.assignment import Part, whole
from ekya.fleet.policy.deep_edge.steps import Chosen, Steps
from ekya.fleet.policy.deep_edge.task import NO_MEMORY, EdgePlan, EdgeTask
from ekya.fleet.policy.places import Node


@dataclass(frozen=True, slots=True)
class Fair:
    """Gives equal shards, in the largest batches that fit into each machine's memory.

    Attributes:
        keeps_deadlines: whether it leaves out workers whose applications would be late; the schedulers of
            Hadoop, Yarn and Mesos ignore them.
    """

    keeps_deadlines: bool = False

    def __call__(self, task: EdgeTask) -> EdgePlan:
        """Returns the plan over all workers that it may use."""
        chosen, left_out = [], {}
        for node in task.workers:
            batch = task.max_batch(node)
            late = task.pressure(node, batch) if batch and self.keeps_deadlines else None
            if not batch or late is not None:
                left_out[node.name] = late or NO_MEMORY
            else:
                chosen.append((node, batch, FULL_GPU_MILLI))
        if not chosen:
            return EdgePlan((), inf, left_out)
        shards = whole({node.name: task.samples / len(chosen) for node, _, _ in chosen}, task.samples)
        parts = [
            Part(node.name, workers=1, chunks=shards[node.name], batch=batch)
            for node, batch, _ in chosen
            if shards[node.name]
        ]
        sample_s = task.sample_s(chosen)
        epoch_s = max(
            shards[node.name] * each_s for (node, _, _), each_s in zip(chosen, sample_s, strict=True)
        )
        return EdgePlan(tuple(parts), epoch_s, left_out)


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
        best, steps = EdgePlan((), inf), Steps(task)
        for some in product(*([None, *self._allowed(task, node)] for node in task.workers)):
            chosen = [one for one in some if one is not None]
            if chosen:
                ((parts, epoch_s),) = steps.of([chosen])
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
