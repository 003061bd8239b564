"""Effect of late gradients on a training of asynchronous workers, on virtual time.

    python experiments/late_gradients.py
    python experiments/late_gradients.py --blocks 1 --seeds 8 --json -
    python experiments/late_gradients.py --full

The training of ``fleet_training.py``, without Ray: the same crops, γ, shards, gate, gradients and steps, in
one process. The duration of a worker's batch follows from its node's share and its crops, with a random
deviation of up to 30%. So delays are realistic, yet the same in every run.

Two workers, one on each node, or three, two of which share the big node, in three ways:

*as they are*: a worker gets the current weights, and its gradient is applied to later ones.
*foreseen*: it gets the weights where momentum will have moved them by then (``TrainingTask.foresees``).
*none late*: the best case. Batches arrive as above, and each gradient is of the newest weights.

Reported against one node: the difference in points of the best epoch, of the last one, and of the mean over
all epochs, which varies least by chance. Three minutes for each seed with ``--blocks 1``, half a minute
without; ``--full`` takes eight seeds of both.
"""

import heapq
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Annotated

# Must be set before numpy is imported: a node is a part of one core.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import typer
from city_windows import one_thread
from fleet_training import BIG, HUB, SHARES, SMALL, crops_of, on_one_node, task_of
from recipe import Full, Json, Seed, run
from rich.console import Console
from rich.table import Table

from ekya.cli.output import bars_of, output
from ekya.config.fleet_file import DEFAULT_FLEET, FleetConfig
from ekya.config.fleet_reading import load_fleet
from ekya.config.shipped import shipped_path
from ekya.fleet.policy.assignment import Assignment, Part
from ekya.fleet.policy.names import JobName, NodeName, SiteName
from ekya.fleet.run.training.dealing import deal
from ekya.fleet.run.training.material import Material
from ekya.fleet.run.training.protocol import TrainingTask
from ekya.fleet.run.training.updates import Updates
from ekya.fleet.run.training.worker import Worker
from ekya.fleet.run.training.workers import WorkerId
from ekya.pipeline.base_model import base_model

UNEVEN = 0.3
"""Largest relative deviation of a batch's duration."""


@dataclass(frozen=True, slots=True)
class Way:
    """Treatment of late gradients.

    Attributes:
        name: shown in tables.
        foresees: as in ``TrainingTask``.
        late: whether a worker pulls weights before its batch; otherwise when its gradient is applied.
    """

    name: str
    foresees: bool
    late: bool = True


WAYS = (Way("as they are", False), Way("foreseen", True), Way("none late", False, late=False))

SPREAD = {
    2: (Part(BIG, chunks=2), Part(SMALL, chunks=1)),
    3: (Part(BIG, workers=2, chunks=2), Part(SMALL, workers=1, chunks=1)),
}
"""Parts of the nodes by number of workers."""


@dataclass(frozen=True, slots=True)
class Played:
    """Result of a training.

    Attributes:
        accuracies: by epoch.
        mean_late: mean number of updates that gradients were behind.
        stalest: largest such number.
    """

    accuracies: tuple[float, ...]
    mean_late: float
    stalest: int


@dataclass(frozen=True, slots=True)
class Row:
    """One training.

    Attributes:
        workers: number of workers; 0 is one node by itself.
        way: name of the way.
        blocks, seed: trained blocks, and the seed of all draws.
        played: its result.
    """

    workers: int
    way: str
    blocks: int
    seed: int
    played: Played


class Play:
    """Simulates an asynchronous training whose workers run on virtual time.

    Args:
        task, assignment: as a trainer gets them.
        share_milli: of each node, which its workers share evenly.
        late: as in ``Way``.
    """

    def __init__(
        self, task: TrainingTask, assignment: Assignment, share_milli: Mapping[NodeName, int], late: bool
    ) -> None:
        material = Material.of(task)
        plan = material.plan(assignment)
        shards = deal(
            material.lying({node: SiteName(node) for node in (*share_milli, task.home)}), assignment
        )
        self._epochs, self._late = task.config.epochs, late
        self._updates = Updates(task.start, plan, material.validation)
        self._updates.restore(None)
        self._workers = {
            me: Worker(
                me,
                number,
                task.start,
                plan,
                shard,
                material.crops.take(shard.positions),
            )
            for number, (me, shard) in enumerate(sorted(shards.items(), key=lambda item: item[0]))
        }
        beside = {me: sum(other.node == me.node for other in self._workers) for me in self._workers}
        self._speeds = {me: share_milli[me.node] / beside[me] for me in self._workers}
        self._rng = np.random.default_rng((task.seed, len(self._workers)))

    def run(self) -> Played:
        """Runs all epochs."""
        accuracies, late, stalest = [], [], 0
        for epoch in range(self._epochs):
            late += self._epoch(epoch)
            stalest = max(stalest, self._updates.gate.stalest)
            result, _ = self._updates.end_epoch()
            accuracies.append(result.validation_accuracy)
        return Played(tuple(accuracies), fmean(late), stalest)

    def _epoch(self, epoch: int) -> list[int]:
        """Runs an epoch; returns for each gradient the number of updates that it was behind on arrival."""
        updates, late = self._updates, []
        updates.begin_epoch(tuple(self._workers))
        left = {me: worker.steps(epoch) for me, worker in self._workers.items()}
        for me, steps in left.items():
            if not steps:
                updates.leave(me)
        working: list[tuple[float, WorkerId]] = []
        pulled = {}
        held: set[WorkerId] = set()
        now, free = 0.0, sorted(left)
        while free or working:
            for me in free:
                if not left[me]:
                    continue
                takes = len(left[me][0]) / self._speeds[me] * self._rng.uniform(1 - UNEVEN, 1 + UNEVEN)
                heapq.heappush(working, (now + takes, me))
                if self._late:
                    pulled[me] = (updates.gate.version, updates.pull(me))
            if not working:
                break
            now, me = heapq.heappop(working)
            version, weights = pulled.pop(me) if self._late else (updates.gate.version, updates.pull(me))
            step = left[me].pop(0)
            late.append(updates.gate.version - version)
            updates.push(me, self._workers[me].push_of(weights, step, last=not left[me]))
            held.add(me)
            free = [other for other in sorted(held) if not updates.waits(other)]
            held -= set(free)
        return late


def trials(
    console: Console, fleet: FleetConfig, trained: Sequence[int], crews: Sequence[int], seeds: Sequence[int]
) -> Iterator[Row]:
    """Yields all ways, for each seed, number of blocks and number of workers."""
    with bars_of(console) as bars:
        bar = bars.add_task("training", total=len(seeds) * len(trained) * (1 + len(crews) * len(WAYS)))
        for seed in seeds:
            base = base_model(fleet, seed)
            training, validation = crops_of(fleet, seed)
            for blocks in trained:
                task = task_of(base, training, validation, blocks, seed, "asynchronous")
                alone = tuple(result.validation_accuracy for result in on_one_node(task, base))
                yield Row(0, "one node", blocks, seed, Played(alone, 0.0, 0))
                bars.advance(bar)
                for workers in crews:
                    assignment = Assignment(JobName("city"), SPREAD[workers], "as the shares are", HUB)
                    for way in WAYS:
                        foreseeing = replace(task, foresees=way.foresees)
                        played = Play(foreseeing, assignment, SHARES, way.late).run()
                        yield Row(workers, way.name, blocks, seed, played)
                        bars.advance(bar)


def shown(rows: Sequence[Row]) -> Table:
    """Returns means over the seeds, and the seed whose best epoch is worst."""
    table = Table(title="Points above or below one node")
    for name in ("blocks", "workers", "way", "best epoch", "worst seed", "last epoch", "all epochs", "late"):
        table.add_column(name, justify="left" if name == "way" else "right")
    alone = {(row.blocks, row.seed): row.played.accuracies for row in rows if not row.workers}
    for key in dict.fromkeys((row.blocks, row.workers, row.way) for row in rows if row.workers):
        same = [row for row in rows if (row.blocks, row.workers, row.way) == key]
        pairs = [(row.played.accuracies, alone[row.blocks, row.seed]) for row in same]
        best = [max(spread) - max(one) for spread, one in pairs]
        table.add_row(
            *map(str, key),
            f"{100 * fmean(best):+.2f}",
            f"{100 * min(best):+.2f}",
            f"{100 * fmean(spread[-1] - one[-1] for spread, one in pairs):+.2f}",
            f"{100 * fmean(fmean(spread) - fmean(one) for spread, one in pairs):+.2f}",
            f"{fmean(row.played.mean_late for row in same):.1f}",
        )
    return table


def main(
    blocks: Annotated[
        list[int] | None,
        typer.Option(
            min=0, max=5, help="That train; may be repeated; 0 unless named, with --full 1 as well."
        ),
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many; 2 unless named, 8 with --full.")] = None,
    full: Full = False,
    seed: Seed = 0,
    json_to: Json = None,
) -> None:
    """Train with asynchronous workers on virtual time, and on one node."""
    one_thread()
    fleet = load_fleet(shipped_path(DEFAULT_FLEET))
    trained = sorted(set(blocks or ((0, 1) if full else (0,))))
    many = range(seed, seed + (seeds or (8 if full else 2)))
    with output(json_to) as out:
        rows = list(trials(out.console, fleet, trained, sorted(SPREAD), many))
        out.report({"shares_milli": SHARES, "rows": [asdict(row) for row in rows]})
        out.console.print(shown(rows))


if __name__ == "__main__":
    run(
        main,
        "python experiments/late_gradients.py",
        "python experiments/late_gradients.py --blocks 1 --seeds 8 --json -",
        "python experiments/late_gradients.py --full",
    )
