"""Shards in whole steps: the last batch of a shard may be smaller, but costs a full update."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from math import inf

from ekya.fleet.policy.assignment import Part
from ekya.fleet.policy.deep_edge.task import EdgeTask, training_on
from ekya.fleet.policy.places import Node

Chosen = tuple[Node, int, int]
"""A worker, its batch and its share."""

Found = tuple[tuple[Part, ...], float]
"""Parts with a shard, and the epoch in seconds."""

_HALVINGS = 40
"""Bisections in the search for the shortest epoch, to less than a billionth of the initial range."""


class Steps:
    """Computes the best shards for given workers, and the estimated epoch.

    Compute times of batches are cached, because they do not depend on the set of workers.
    """

    def __init__(self, task: EdgeTask) -> None:
        self._task = task
        self._known: dict[tuple[str, int, int], list[float]] = {}

    def of(self, workers: Sequence[Chosen], below_s: float = inf) -> Found:
        """Returns the shortest epoch; no parts and infinity where it is longer than ``below_s``."""
        samples = self._task.samples
        trainings = [training_on(*one) for one in workers]
        updates_s = self._task.estimates.update_s(trainings, self._task.parameter_server)
        if below_s < inf and samples > sum(
            _done(self._computing_s(*one), below_s, update_s)
            for one, update_s in zip(workers, updates_s, strict=True)
        ):
            return (), inf
        batches_s = [
            [each + update_s for each in self._computing_s(*one)]
            for one, update_s in zip(workers, updates_s, strict=True)
        ]
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
                parts.append(Part(node.name, workers=1, chunks=given, batch=batch, share_milli=share))
        return tuple(parts), high_s

    def sample_s(self, worker: Chosen) -> float:
        """Returns the compute time of a sample in a whole batch."""
        return self._computing_s(*worker)[-1] / worker[1]

    def _computing_s(self, node: Node, batch: int, share: int) -> list[float]:
        """Returns the seconds of batches of 1, 2, ... samples up to the worker's batch; non-decreasing."""
        key = node.name, batch, share
        if key not in self._known:
            compute_s = self._task.estimates.compute_s
            sizes = range(1, batch + 1)
            times = (size * compute_s(training_on(node, size, share)) for size in sizes)
            self._known[key] = list(accumulate(times, max))
        return self._known[key]


def _done(batches_s: Sequence[float], within_s: float, update_s: float = 0.0) -> int:
    """Returns the samples that a worker can train in a time: whole steps, and a smaller last batch.

    Args:
        batches_s: times of batches of 1, 2, ... samples.
        within_s: the time.
        update_s: of an update, if the times of batches are without.
    """
    step_s = batches_s[-1] + update_s
    # The tolerance keeps rounding from losing a step where the time is a multiple of a step.
    steps = int(within_s / step_s * (1 + 1e-12))
    rest_s = within_s - steps * step_s - update_s
    return steps * len(batches_s) + bisect_right(batches_s, rest_s, hi=len(batches_s) - 1)
