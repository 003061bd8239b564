"""Schedules built job by job, many beside each other: the inner loop of Algorithm 1."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ekya.fleet.policy.andreas.point import Floats, Ints, Point

WAITS = -1


@dataclass(frozen=True, slots=True)
class Schedules:
    """Several, each a row; jobs are columns.

    Attributes:
        config: of each job, or ``WAITS``.
        node: where; its place in the point's names, or ``WAITS``.
    """

    config: Ints
    node: Ints


def construct(point: Point, order: Ints, wished: Ints, free: Sequence[int] | None = None) -> Schedules:
    """ASSIGN, and where that fails ASSIGN_TO_SUBOPTIMAL, for each job in turn.

    A configuration stands for all nodes that are alike. Of those that have enough GPUs left, the fullest is
    taken, so a node that runs nothing comes last. The paper's open nodes N_O are read as nodes with GPUs
    left: kept to those in use, jobs would wait beside empty nodes. Who finds nothing in D_j waits; who is
    late anyhow takes the fastest configuration that is there.

    Args:
        point: what is to be decided.
        order: jobs of each schedule, from the first on; jobs that are not named get nothing.
        wished: the configuration each of them tries first, in the same places.
        free: GPUs left in each node; all of them where it is None.
    """
    many = len(order)
    rows = np.arange(many)
    left = _Left(point, many, free)
    config = np.full((many, len(point.states)), WAITS, dtype=np.intp)
    node = np.full((many, len(point.states)), WAITS, dtype=np.intp)
    for turn in range(order.shape[1]):
        fits = left.fits()
        if not fits.any():
            break
        job, wish = order[:, turn], wished[:, turn]
        keys = np.where(fits, point.keys[job], np.inf)
        chosen = np.where(fits[rows, wish], wish, keys.argmin(axis=1))
        (placed,) = np.nonzero(np.isfinite(keys[rows, chosen]) | fits[rows, wish])
        chosen, job = chosen[placed], job[placed]
        config[placed, job] = chosen
        node[placed, job] = left.take(placed, chosen)
    return Schedules(config, node)


class _Left:
    """GPUs that are left in each schedule.

    Column c of a configuration (shelf, g) also counts the nodes of its shelf with g GPUs left; ``piles``
    has them.
    """

    def __init__(self, point: Point, many: int, free: Sequence[int] | None) -> None:
        columns = len(point.gpus)
        same = point.shelf[:, None] == point.shelf[None, :]
        self._gpus = point.gpus
        # [c, p]: whether a node of pile p has room for configuration c.
        self._room = same & (point.gpus[None, :] >= point.gpus[:, None])
        piles: list[list[int]] = [[] for _ in range(columns)]
        shelf_of_node = [number for number, shelf in enumerate(point.shelves) for _ in shelf.names]
        pile_of = {(int(s), int(g)): c for c, (s, g) in enumerate(zip(point.shelf, point.gpus, strict=True))}
        for node, number in enumerate(shelf_of_node):
            gpus = point.shelves[number].gpus if free is None else free[node]
            if gpus:
                piles[pile_of[number, gpus]].append(node)
        self._piles = np.zeros((many, columns, max(1, len(shelf_of_node))), dtype=np.int32)
        self._count = np.zeros((many, columns), dtype=np.intp)
        for column, pile in enumerate(piles):
            # The last of a pile is taken first; it is the first by name.
            self._piles[:, column, : len(pile)] = pile[::-1]
            self._count[:, column] = len(pile)

    def fits(self) -> np.typing.NDArray[np.bool_]:
        """Which configurations there is room for, in each schedule."""
        there = (self._count > 0).astype(np.float32)
        return np.asarray(there @ self._room.T.astype(np.float32) > 0)

    def take(self, rows: Ints, config: Ints) -> Ints:
        """Gives out one of each; the nodes."""
        pile = ((self._count[rows] > 0) & self._room[config]).argmax(axis=1)
        count = self._count[rows, pile] - 1
        nodes = self._piles[rows, pile, count]
        self._count[rows, pile] = count
        rest = self._gpus[pile] - self._gpus[config]
        (some,) = np.nonzero(rest)
        rows, pile = rows[some], pile[some] - self._gpus[config[some]]
        self._piles[rows, pile, self._count[rows, pile]] = nodes[some]
        self._count[rows, pile] += 1
        return np.asarray(nodes, dtype=np.intp)


def proxy(point: Point, schedules: Schedules, postponing: float, period_s: float) -> Floats:
    """Equation (1) of each schedule.

    The text of (1) is damaged and is read as Σ ω_j (τ_j + ρ τ̂_j) + Σ α_jn π_jn: τ the tardiness of a job
    that runs, τ̂ that of one that waits, which may have to begin after ``period_s`` and in its slowest
    configuration; α is 1 for the first job to end on a node, and π = t_jng c_ng what it costs there.

    Args:
        point: what is decided.
        schedules: all of them.
        postponing: ρ.
        period_s: until jobs that wait are looked at again, at the latest.
    """
    many, nodes = len(schedules.config), len(point.node_names)
    worst_s = np.maximum(0.0, period_s + point.longest_s - point.due_in_s)
    waits = schedules.config == WAITS
    value: Floats = waits @ (postponing * point.weight * worst_s)
    row, job = np.nonzero(~waits)
    config = schedules.config[row, job]
    late = np.bincount(row, (point.weight[:, None] * point.tardiness_s)[job, config], many)
    place = row * nodes + schedules.node[row, job]
    takes_s, cost = point.takes_s[job, config], point.cost[job, config]
    first_s = np.full(many * nodes, np.inf)
    np.minimum.at(first_s, place, takes_s)
    first_cost = np.full(many * nodes, np.inf)
    # Of two that end together the cheaper one counts.
    np.minimum.at(first_cost, place, np.where(takes_s <= first_s[place], cost, np.inf))
    first_cost[np.isinf(first_cost)] = 0.0
    return np.asarray(value + late + first_cost.reshape(many, nodes).sum(axis=1))
