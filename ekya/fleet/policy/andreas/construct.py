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
        node[at] = left.take_nodes(placed, chosen)
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

    def take_nodes(self, rows: Ints, config: Ints) -> Ints:
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


FEW = 8
"""Most configurations for which tables are made; a table has one part per subset of configurations."""

NOTHING = -1


class Beside:
    """Builds the same schedules as ``construct``, by table look-ups instead of searches.

    A schedule's state is the set of its non-empty piles. The state determines which configurations fit, and
    so the configuration that a job gets for its wish; the pile from which the node is taken; the pile to
    which the node goes with its remaining GPUs; and the next state, depending on whether the first pile is
    then empty. Two extra piles make all steps alike: a job that gets nothing takes a dummy node from one and
    puts it back, and nodes without free GPUs go on the other.
    """

    def __init__(self, point: Point) -> None:
        columns, states = len(point.gpus), np.arange(1 << len(point.gpus))
        self._jobs, self._columns = len(point.states), columns
        self._none, self._full = columns, columns + 1
        # A part has one entry per choice, and one for none; a state is identified by the start of its part.
        part = columns + 1
        self._places = part * len(states)
        self._from = np.full(self._places, self._none)
        self._onto = self._from.copy()
        # First half: the pile still holds a node. Second half: it is empty.
        self._next = np.tile(np.repeat(states * part, part), 2)
        room = np.zeros((len(states), columns), dtype=np.bool_)
        for choice in range(columns):
            # The loop ends with the fullest nodes that fit, whose entries overwrite the others.
            for pile in reversed(range(choice, columns)):
                if point.shelf[pile] != point.shelf[choice]:
                    continue
                held = states[states >> pile & 1 == 1]
                left = pile - int(point.gpus[choice]) if point.gpus[pile] > point.gpus[choice] else None
                after = held if left is None else held | 1 << left
                move = held * part + choice
                room[held, choice] = True
                self._from[move] = pile
                self._onto[move] = self._full if left is None else left
                self._next[move] = after * part
                self._next[move + self._places] = (after & ~(1 << pile)) * part
        # States in which the same configurations fit share a table of choices.
        rooms, shared = np.unique(room, axis=0, return_inverse=True)
        self._choices = np.repeat(shared.ravel() * self._jobs * columns, part)
        self._choice = _choices(point, rooms).ravel()
        piles = piles_of(point)
        self._begins = sum(1 << pile for pile, nodes in enumerate(piles) if nodes) * part
        self._top = np.full(columns + 2, NOTHING)
        self._below = np.full(len(point.node_names) + 1, NOTHING)
        self._top[self._none] = len(point.node_names)
        for pile, nodes in enumerate(piles):
            for node in nodes:
                self._below[node], self._top[pile] = self._top[pile], node

    def construct(self, order: Ints, wished: Ints) -> Schedules:
        """Builds one schedule per row.

        Args:
            order: jobs of each schedule, in the order of placement.
            wished: configuration that each job tries first; jobs are columns.
        """
        many = len(order)
        rows = np.arange(many)
        top, tops = np.tile(self._top, many), rows * len(self._top)
        below, belows = np.tile(self._below, many), rows * len(self._below)
        jobs = (order + rows[:, None] * self._jobs).T.copy()
        wishes = (order * self._columns).T + wished.ravel()[jobs]
        chosen = np.empty(jobs.shape, dtype=np.int8)
        given = np.empty(jobs.shape, dtype=np.int32)
        state = np.full(many, self._begins)
        turns = 0
        while turns < len(wishes) and state.any():
            choice = self._choice[self._choices[state] + wishes[turns]]
            move = state + choice
            pile = tops + self._from[move]
            node = top[pile]
            chosen[turns], given[turns] = choice, node
            place = belows + node
            under = below[place]
            top[pile] = under
            pile = tops + self._onto[move]
            below[place] = top[pile]
            top[pile] = node
            state = self._next[move + self._places * (under == NOTHING)]
            turns += 1
        jobs, chosen, given = jobs[:turns], chosen[:turns], given[:turns]
        waits = chosen == self._none
        chosen[waits], given[waits] = WAITS, WAITS
        config, nodes = np.full((2, many, self._jobs), WAITS)
        config.ravel()[jobs.ravel()] = chosen.ravel()
        nodes.ravel()[jobs.ravel()] = given.ravel()
        return Schedules(config, nodes)


def _choices(point: Point, rooms: Bools) -> Ints:
    """Returns choices by fitting configurations, job and wish: the wish, else the best by keys, else none."""
    columns = len(point.gpus)
    keys = np.where(rooms[:, None, :], point.keys, np.inf)
    best = keys.argmin(axis=2)[:, :, None]
    best = np.where(np.isfinite(np.take_along_axis(keys, best, axis=2)), best, columns)
    return np.where(np.isfinite(keys), np.arange(columns), best)
