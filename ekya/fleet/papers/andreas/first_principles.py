"""Baselines FIFO, EDF and priority: a started job keeps its resources to its end (§V.B)."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ekya.fleet.policy.andreas.construct import construct
from ekya.fleet.policy.andreas.point import WAITS, point_of
from ekya.fleet.policy.andreas.settle import decision_of
from ekya.fleet.policy.assignment import Decision
from ekya.fleet.policy.view import FleetView, JobState


@dataclass(frozen=True, slots=True)
class FirstPrinciple:
    """Places waiting jobs in a fixed order; started jobs are never moved, resized or preempted.

    A new job's configuration is chosen and assigned by ANDREAS's rules without randomness, so these methods
    differ from ANDREAS only in the order, in preemption and in building a single schedule. A job that finds
    no place does not block the jobs behind it.

    Attributes:
        rank: sort key; the smallest goes first.
    """

    name: str
    rank: Callable[[JobState], float]
    on_events: bool = True
    every_us: None = None

    def decide(self, view: FleetView) -> Decision:
        """Places waiting jobs on the free GPUs."""
        point = point_of(view)
        config, node = (now.copy() for now in point.places_now)
        free = point.node_gpus
        for row in np.flatnonzero(config != WAITS):
            free[node[row]] -= int(point.gpus[config[row]])
        waiting = sorted(
            np.flatnonzero(config == WAITS),
            key=lambda row: (self.rank(point.states[row]), point.states[row].job.name),
        )
        if waiting and point.shelves:
            order = np.array([waiting], dtype=np.intp)
            new = construct(point, order, point.keys.argmin(axis=1)[None, :], free)
            config, node = np.maximum(config, new.config[0]), np.maximum(node, new.node[0])
        return decision_of(point, config, node)


FIFO = FirstPrinciple("fifo", lambda state: state.job.arrives_us)
EDF = FirstPrinciple("edf", lambda state: np.inf if state.job.due_us is None else state.job.due_us)
PRIORITY = FirstPrinciple("priority", lambda state: -state.job.waiting.per_s)
"""In the order of arrival, the earliest due date first, and the highest tardiness weight first."""
