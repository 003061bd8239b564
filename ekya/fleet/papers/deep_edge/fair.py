"""Fairness-based baseline of Deep-Edge (§V.C): equal shards for all workers."""

from dataclasses import dataclass

from ekya.core.units import FULL_GPU_MILLI
from ekya.fleet.policy.assignment import Part, whole
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
        batches, left_out = {}, {}
        for node in task.workers:
            batch = task.max_batch(node)
            late = task.pressure(node, batch) if batch and self.keeps_deadlines else None
            if not batch or late is not None:
                left_out[node.name] = late or NO_MEMORY
            else:
                batches[node.name] = batch
        if not batches:
            return EdgePlan((), float("inf"), left_out)
        workers = [node for node in task.workers if node.name in batches]
        shards = whole({name: task.samples / len(batches) for name in batches}, task.samples)
        sample_s = task.sample_s([(node, batches[node.name], FULL_GPU_MILLI) for node in workers])
        parts = [
            Part(name, workers=1, chunks=shards[name], batch=batch)
            for name, batch in batches.items()
            if shards[name]
        ]
        epoch_s = max(shards[node.name] * each_s for node, each_s in zip(workers, sample_s, strict=True))
        return EdgePlan(tuple(parts), epoch_s, left_out)
