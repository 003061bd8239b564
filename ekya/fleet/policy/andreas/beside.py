"""Table-driven construction of many schedules of one point in parallel; the hot path of ANDREAS."""

import numpy as np

from ekya.fleet.policy.andreas.construct import Bools, Schedules, piles_of
from ekya.fleet.policy.andreas.point import WAITS, Ints, Point

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
