"""Algorithm 1 of Deep-Edge; comments give its line numbers.

Our reading of what is left open: ``Iter`` is reset each time the inner loop is entered (otherwise it would
pass τ once and never equal it again); a worker without memory for b_min is removed first, by constraint (1);
the algorithm ends when no worker is left.
"""

from dataclasses import dataclass, field
from math import inf, sqrt

from ekya.core.units import FULL_GPU_MILLI
from ekya.fleet.policy.assignment import NodePart, whole
from ekya.fleet.policy.deep_edge.task import NO_MEMORY, EdgePlan, EdgeTask
from ekya.fleet.policy.places import Node, NodeName


@dataclass(frozen=True, slots=True)
class Heuristic:
    """The paper's solver.

    Attributes:
        threshold: ε, of the change of the shards between two rounds, in samples.
        rounds: τ, upper bound of the rounds of the inner loop.
    """

    threshold: float = 0.5
    rounds: int = 50

    def __call__(self, task: EdgeTask) -> EdgePlan:
        """Returns the best plan of a series of clusters, each one worker smaller than the last."""
        largest = {node.name: task.max_batch(node) for node in task.workers}
        left_out = {name: NO_MEMORY for name, batch in largest.items() if not batch}
        state = _Search(
            task,
            [node for node in task.workers if largest[node.name]],
            {name: batch for name, batch in largest.items() if batch},
            dict.fromkeys(largest, inf),  # lines 2 and 3
            left_out,
        )
        best_s, best = inf, EdgePlan((), inf)
        while True:  # line 4
            self._balance(state)
            if not state.workers:
                break
            epoch_s = max(state.shards[node.name] * state.sample_s[node.name] for node in state.workers)  # 29
            if epoch_s >= best_s:  # lines 35 and 36
                break
            best_s, best = epoch_s, state.plan(epoch_s)  # lines 30 to 32
            slowest = max(state.workers, key=lambda node: (state.sample_s[node.name], node.name))  # line 33
            state.remove(slowest)  # line 34
        kept = {part.node for part in best.parts}
        for node in task.workers:
            if node.name not in kept:
                state.left_out.setdefault(node.name, "without it an epoch is shorter")
        return EdgePlan(best.parts, best_s, state.left_out)

    def _balance(self, state: "_Search") -> None:
        """Runs the inner loop, lines 5 to 28."""
        for _ in range(self.rounds):
            before = dict(state.shards)
            state.refine()
            changes = [
                0.0 if shard == before[name] else shard - before[name] for name, shard in state.shards.items()
            ]
            if sqrt(sum(change**2 for change in changes)) <= self.threshold:  # lines 24 to 26
                break


@dataclass(slots=True)
class _Search:
    """Variables of Algorithm 1: W, the largest batches, D, and the reasons of removed workers."""

    task: EdgeTask
    workers: list[Node]
    largest: dict[NodeName, int]
    shards: dict[NodeName, float]
    left_out: dict[NodeName, str]
    batches: dict[NodeName, int] = field(default_factory=dict)
    sample_s: dict[NodeName, float] = field(default_factory=dict)

    def refine(self) -> None:
        """Runs one round of the inner loop."""
        task = self.task
        self.batches = {node.name: self._batch(node) for node in self.workers}  # line 6
        trained = [(node, self.batches[node.name], FULL_GPU_MILLI) for node in self.workers]
        names = [node.name for node in self.workers]
        self.sample_s = dict(zip(names, task.sample_s(trained), strict=True))  # lines 7 to 9
        rates = {name: 1 / sample_s for name, sample_s in self.sample_s.items()}
        everyone = sum(rates.values())
        for name, rate in rates.items():
            self.shards[name] = task.samples * rate / everyone  # line 10
        for node in list(self.workers):  # lines 11 to 22
            late = task.pressure(node, self.batches[node.name])
            if late is not None:
                self.left_out[node.name] = late
                self.remove(node)

    def remove(self, node: Node) -> None:
        """Removes a worker from W, with its batch and shard."""
        self.workers.remove(node)
        self.batches[node.name], self.shards[node.name] = 0, 0.0

    def plan(self, epoch_s: float) -> EdgePlan:
        """Returns the plan of the remaining workers, in whole samples."""
        shards = whole({node.name: self.shards[node.name] for node in self.workers}, self.task.samples)
        parts = (
            NodePart(node.name, workers=1, chunks=shards[node.name], batch=self.batches[node.name])
            for node in self.workers
        )
        return EdgePlan(tuple(part for part in parts if part.chunks), epoch_s)

    def _batch(self, node: Node) -> int:
        shard, largest = self.shards[node.name], self.largest[node.name]
        return largest if shard >= largest else max(self.task.limits.batch_min, int(shard))
