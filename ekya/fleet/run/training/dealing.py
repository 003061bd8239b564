"""Distribution of crops to workers, by the assignment's proportions and with local crops first."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ekya.fleet.policy.assignment import JobAssignment, NodePart, whole
from ekya.fleet.policy.places import NodeName, SiteName
from ekya.fleet.run.training.workers import Positions, Shard, WorkerId


@dataclass(frozen=True, slots=True, eq=False)
class Lying:
    """Location of a training's crops.

    Attributes:
        origins: node of each fresh crop.
        exemplars: number of exemplars, which are numbered after the fresh crops.
        sites: of each node.
        seed: of the random draw.
        batch: crops in a worker's step where the assignment sets none.
    """

    origins: Sequence[NodeName]
    exemplars: int
    sites: Mapping[NodeName, SiteName]
    seed: int
    batch: int


def deal(lying: Lying, assignment: JobAssignment) -> dict[WorkerId, Shard]:
    """Deals every crop to exactly one worker.

    The nodes' counts are proportional to ``NodePart.chunks`` (to workers where all are 0), so a chunk may be
    one crop or many. A node takes its own crops first, then those of its site, then others; the assignment's
    moves between sites are kept up to rounding. Crops are drawn at random, so that a shard is not from one
    period only.
    """
    parts = {part.node: part for part in assignment.parts}
    rng = np.random.default_rng((lying.seed, len(lying.origins)))
    wanted = apportion(len(lying.origins), {node: weight_of(parts, node) for node in parts})
    given = _dealt_fresh(lying, assignment, wanted, rng)
    shards = {}
    spare = iter(_dealt_exemplars(lying, {node: len(taken) for node, taken in given.items()}, rng))
    for node, part in parts.items():
        exemplars = next(spare)
        workers = workers_of(part)
        for worker, fresh, kept in zip(
            workers,
            np.array_split(np.array(given[node], np.int64), len(workers)),
            np.array_split(exemplars, len(workers)),
            strict=True,
        ):
            shards[worker] = Shard(np.sort(fresh), np.sort(kept), part.batch or lying.batch, part.share_milli)
    return shards


def deal_again(
    shards: Mapping[WorkerId, Shard], out: Collection[NodeName], assignment: JobAssignment
) -> dict[WorkerId, Shard]:
    """Deals the crops of excluded nodes to the remaining workers, which keep what they have.

    Raises:
        ValueError: no worker remains.
    """
    staying = {worker: shard for worker, shard in shards.items() if worker.node not in out}
    if not staying:
        raise ValueError("every node is out")
    parts = {part.node: part for part in assignment.parts}
    weights = {
        worker: weight_of(parts, worker.node) / len(workers_of(parts[worker.node])) for worker in staying
    }
    lost = [shard for worker, shard in shards.items() if worker.node in out]
    fresh = _split(np.concatenate([_NONE, *(shard.fresh for shard in lost)]), weights)
    exemplars = _split(np.concatenate([_NONE, *(shard.exemplars for shard in lost)]), weights)
    return {
        worker: Shard(
            np.sort(np.concatenate([shard.fresh, fresh[worker]])),
            np.sort(np.concatenate([shard.exemplars, exemplars[worker]])),
            shard.batch,
            shard.share_milli,
        )
        for worker, shard in staying.items()
    }


def workers_of(part: NodePart) -> tuple[WorkerId, ...]:
    """Returns the workers of one node; one where the policy does not count workers."""
    return tuple(WorkerId(part.node, place) for place in range(max(1, part.workers)))


def apportion(total: int, weights: Mapping[NodeName, float]) -> dict[NodeName, int]:
    """Returns whole numbers proportional to the weights that add up to the total."""
    of_all = sum(weights.values())
    return whole({node: total * weight / of_all for node, weight in weights.items()}, total)


def weight_of(parts: Mapping[NodeName, NodePart], node: NodeName) -> float:
    """Returns a node's weight in the distribution of crops."""
    part = parts[node]
    return float(part.chunks) if any(other.chunks for other in parts.values()) else max(1.0, part.workers)


_NONE = np.zeros(0, np.int64)


def _dealt_fresh(
    lying: Lying, assignment: JobAssignment, wanted: Mapping[NodeName, int], rng: np.random.Generator
) -> dict[NodeName, list[int]]:
    """Returns the fresh crops of each node, as many as it wants; the nearest first, and within the moves."""
    piles: dict[NodeName, list[int]] = {}
    for position in rng.permutation(len(lying.origins)):
        piles.setdefault(lying.origins[position], []).append(int(position))
    given: dict[NodeName, list[int]] = {node: [] for node in wanted}

    def hand_over(origin: NodeName, target: NodeName, most: int) -> int:
        pile = piles[origin]
        count = min(most, len(pile), wanted[target] - len(given[target]))
        given[target] += pile[:count]
        del pile[:count]
        return count

    sites, crops = lying.sites, len(lying.origins)
    pairs = [(origin, target) for target in wanted for origin in sorted(piles)]
    near = [pair for pair in pairs if sites[pair[0]] == sites[pair[1]]]
    near.sort(key=lambda pair: pair[0] != pair[1])
    chunks = sum(assignment.moves.values())
    if chunks:
        limits = {way: round(crops * count / chunks) for way, count in assignment.moves.items()}
        for origin, target in [*near, *pairs]:
            way = (sites[origin], sites[target])
            limits[way] = limits.get(way, 0) - hand_over(origin, target, limits.get(way, 0))
    for origin, target in [*near, *pairs]:
        hand_over(origin, target, crops)
    return given


def _dealt_exemplars(
    lying: Lying, fresh: Mapping[NodeName, int], rng: np.random.Generator
) -> Iterable[Positions]:
    """Returns the exemplars by node, in proportion to its fresh crops, with which they are mixed."""
    order = len(lying.origins) + rng.permutation(lying.exemplars)
    counts = apportion(lying.exemplars, fresh)
    return np.split(order, np.cumsum(list(counts.values()))[:-1])


def _split(positions: Positions, weights: Mapping[WorkerId, float]) -> dict[WorkerId, Positions]:
    workers = sorted(weights)
    of_all = sum(weights.values())
    shares = np.cumsum([weights[worker] / of_all if of_all else 1 / len(workers) for worker in workers])
    cuts = np.rint(shares * len(positions)).astype(np.int64)[:-1]
    return dict(zip(workers, np.split(positions, cuts), strict=True))
