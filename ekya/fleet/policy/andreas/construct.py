"""Schedules built job by job: the inner loop of Algorithm 1, and equation (1)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekya.fleet.policy.andreas.point import WAITS, Floats, Ints, Point

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Schedules:
    """Several schedules; schedules are rows, jobs columns.

    Attributes:
        config: configuration of each job, or ``WAITS``.
        node: index of its node in ``Point.node_names``, or ``WAITS``.
    """

    config: Ints
    node: Ints


def construct(point: Point, order: Ints, wished: Ints, free: Sequence[int] | None = None) -> Schedules:
    """Applies ASSIGN, and where that fails ASSIGN_TO_SUBOPTIMAL, to one job after the other.

    Of the nodes that are alike and have enough free GPUs the fullest is taken. A job that finds no
    configuration of D_j waits; a job that is late in any configuration takes the fastest that fits.

    Args:
        order: jobs of each schedule, in the order of placement; missing jobs get nothing.
        wished: configuration that each job tries first; jobs are columns.
        free: free GPUs of each node; None: all of them.
    """
    many, jobs = len(order), len(point.states)
    left = _Left(point, many, free)
    begins, rows = np.arange(many) * len(point.gpus), np.arange(many) * jobs
    config = np.full(many * jobs, WAITS, dtype=np.intp)
    node = np.full(many * jobs, WAITS, dtype=np.intp)
    keys = np.empty(left.closed.shape)
    for turn in range(order.shape[1]):
        if not left.gpus:
            break
        job = order[:, turn]
        wish = wished.ravel()[rows + job]
        np.add(point.keys[job], left.closed, out=keys)
        # A job that runs nowhere has an infinite key for every wish.
        chosen = np.where(np.isfinite(keys.ravel()[begins + wish]), wish, keys.argmin(axis=1))
        (placed,) = np.nonzero(np.isfinite(keys.ravel()[begins + chosen]))
        at, chosen = placed * jobs + job[placed], chosen[placed]
        config[at] = chosen
        node[at] = left.take(placed, chosen)
    return Schedules(config.reshape(many, jobs), node.reshape(many, jobs))


def piles_of(point: Point, free: Sequence[int] | None = None) -> list[list[int]]:
    """Returns piles of nodes by configuration (shelf and free GPUs); the last of a pile is taken first.

    Args:
        free: free GPUs of each node; None: all of them.
    """
    piles: list[list[int]] = [[] for _ in point.gpus]
    for number, shelf in enumerate(point.shelves):
        for node in range(*point.nodes_of(number)):
            gpus = shelf.gpus if free is None else free[node]
            if gpus:
                piles[int(point.single[number]) + gpus - 1].append(node)
    # Reversed, so that the first by name is taken first.
    return [pile[::-1] for pile in piles]


class _Left:
    """Tracks the free GPUs in each schedule.

    Column c of a configuration (shelf, g) also stands for the pile of nodes of that shelf with g free GPUs.

    Attributes:
        closed: 0 where a configuration fits and infinity elsewhere, in each schedule.
        gpus: number of free GPUs of all schedules together.
    """

    def __init__(self, point: Point, many: int, free: Sequence[int] | None) -> None:
        self._gpus = point.gpus
        # [c]: columns of c's shelf; a shelf with fewer GPUs than others has its last column several times.
        widest = np.array([shelf.gpus for shelf in point.shelves], dtype=np.intp)[point.shelf]
        begin = np.arange(len(widest)) - point.gpus + 1
        self._shelf = np.minimum(
            begin[:, None] + np.arange(widest.max(initial=0)), (begin + widest)[:, None] - 1
        )
        piles = piles_of(point, free)
        self._deep = max((len(shelf.names) for shelf in point.shelves), default=1)
        one = np.zeros((len(piles), self._deep), dtype=np.int32)
        for column, pile in enumerate(piles):
            one[column, : len(pile)] = pile
        count = np.array([len(pile) for pile in piles], dtype=np.intp)
        self.gpus = many * int(count @ point.gpus)
        self._piles, self._count = np.tile(one.ravel(), many), np.tile(count, many)
        self.closed = np.empty((many, len(piles)))
        for column in point.single:
            self._look(np.arange(many) * len(piles), self._shelf[[column]])

    def take(self, rows: Ints, config: Ints) -> Ints:
        """Takes a node for each row from the pile of the fullest nodes that fit; returns the nodes."""
        begins, shelf, given = rows * len(self._gpus), self._shelf[config], self._gpus[config]
        fits = (self._count[begins[:, None] + shelf] > 0) & (shelf >= config[:, None])
        pile = np.take_along_axis(shelf, fits.argmax(axis=1)[:, None], axis=1)[:, 0]
        at = begins + pile
        count = self._count[at] - 1
        nodes = self._piles[at * self._deep + count]
        self._count[at] = count
        (some,) = np.nonzero(self._gpus[pile] > given)
        at = at[some] - given[some]
        count = self._count[at]
        self._piles[at * self._deep + count] = nodes[some]
        self._count[at] = count + 1
        self.gpus -= int(given.sum())
        self._look(begins, shelf)
        return np.asarray(nodes, dtype=np.intp)

    def _look(self, begins: Ints, shelf: Ints) -> None:
        """Finds what fits on a shelf of each schedule: what has a node with as many free GPUs, or more."""
        at = begins[:, None] + shelf
        fits = np.logical_or.accumulate(self._count[at][:, ::-1] > 0, axis=1)[:, ::-1]
        self.closed.ravel()[at] = np.where(fits, 0.0, np.inf)


def proxy(point: Point, schedules: Schedules, postponing: float, period_s: float) -> Floats:
    """Returns Equation (1) for each schedule.

    It is Σ ω_j (τ_j + ρ τ̂_j) + Σ α_jn π_jn: τ is the tardiness of a job that runs, τ̂ that of one that waits,
    begins after ``period_s`` and runs in its slowest configuration; ρ is ``postponing``; α is 1 for the first
    job to end on a node, and π = t_jng c_ng.
    """
    many, nodes = len(schedules.config), len(point.node_names)
    columns = len(point.gpus)
    worst_s = np.maximum(0.0, period_s + point.longest_s - point.due_in_s)
    waits = schedules.config == WAITS
    value: Floats = waits.astype(np.float64) @ (postponing * point.weight * worst_s)
    (at,) = np.nonzero(~waits.ravel())
    row, job = at // len(point.states), at % len(point.states)
    choice = job * columns + schedules.config.ravel()[at]
    late = np.bincount(row, (point.weight[:, None] * point.tardiness_s).ravel()[choice], many)
    place = row * nodes + schedules.node.ravel()[at]
    takes_s, cost = point.takes_s.ravel()[choice], point.cost.ravel()[choice]
    first_s = np.full(many * nodes, np.inf)
    np.minimum.at(first_s, place, takes_s)
    (first,) = np.nonzero(takes_s <= first_s[place])
    first_cost = np.full(many * nodes, np.inf)
    # Of jobs that end together the cheapest counts.
    np.minimum.at(first_cost, place[first], cost[first])
    first_cost[np.isinf(first_cost)] = 0.0
    return np.asarray(value + late + first_cost.reshape(many, nodes).sum(axis=1))
