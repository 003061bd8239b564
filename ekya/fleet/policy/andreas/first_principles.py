"""FIFO, EDF and priority: who has started keeps what it has to its end (§V.B)."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ekya.fleet.policy.andreas.construct import WAITS, construct
from ekya.fleet.policy.andreas.point import Point, point_of
from ekya.fleet.policy.andreas.settle import decision_of
from ekya.fleet.policy.assignment import Decision
from ekya.fleet.policy.view import FleetView, JobState


@dataclass(frozen=True, slots=True)
class FirstPrinciple:
    """Jobs that wait are placed in one order; who has started is never moved, resized or sent back.

    A new job's configuration is chosen and assigned by ANDREAS's own rules, without chance, so that these
    methods differ from it in order, in preemption and in looking further than one schedule, and in nothing
    else. Who finds no place does not keep those behind it from theirs.

    Attributes:
        name: of the method.
        rank: the smallest goes first.
        every_us: it is asked when something happens.
    """

    name: str
    rank: Callable[[JobState], float]
    every_us: int | None = None

    def decide(self, view: FleetView) -> Decision:
        """Places for those that wait, as far as there is room."""
        point = point_of(view)
        node, config = (now.copy() for now in point.places_now)
        free = [shelf.gpus for shelf in point.shelves for _ in shelf.names]
        for row in np.flatnonzero(config != WAITS):
            free[node[row]] -= int(point.gpus[config[row]])
        waiting = self._in_order(point, [row for row in range(len(config)) if config[row] == WAITS])
        if waiting and point.shelves:
            order = np.array([waiting], dtype=np.intp)
            new = construct(point, order, point.keys.argmin(axis=1)[None, :], free)
            config, node = np.maximum(config, new.config[0]), np.maximum(node, new.node[0])
        return decision_of(point, config, node)

    def _in_order(self, point: Point, rows: list[int]) -> list[int]:
        return sorted(rows, key=lambda row: (self.rank(point.states[row]), point.states[row].job.name))


def fifo() -> FirstPrinciple:
    """Who came first."""
    return FirstPrinciple("fifo", lambda state: state.job.arrives_us)


def edf() -> FirstPrinciple:
    """Who is due first."""
    return FirstPrinciple("edf", lambda state: np.inf if state.job.due_us is None else state.job.due_us)


def priority() -> FirstPrinciple:
    """Whose tardiness costs most."""
    return FirstPrinciple("priority", lambda state: -state.job.waiting.per_s)
