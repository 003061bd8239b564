"""Fairness, a solver with which Deep-Edge is compared (§V.C)."""

from dataclasses import dataclass
from math import inf

from ekya.core.units import FULL_GPU_MILLI
from ekya.fleet.policy.assignment import NodePart, whole
from ekya.fleet.policy.deep_edge.task import NO_MEMORY, EdgePlan, EdgeTask


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
            NodePart(node.name, workers=1, chunks=shards[node.name], batch=batch)
            for node, batch, _ in chosen
            if shards[node.name]
        ]
        sample_s = task.sample_s(chosen)
        epoch_s = max(
            shards[node.name] * each_s for (node, _, _), each_s in zip(chosen, sample_s, strict=True)
        )
        return EdgePlan(tuple(parts), epoch_s, left_out)
