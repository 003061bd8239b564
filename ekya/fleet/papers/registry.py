"""Registry of the policies that can play in the papers' worlds, by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from types import MappingProxyType

import numpy as np

from ekya.core.units import FULL_GPU_MILLI, US_PER_S, us_to_seconds
from ekya.fleet.papers.okita.fixed import Drf, OkitaFifo
from ekya.fleet.papers.okita.oasis import Oasis
from ekya.fleet.policy.andreas.construct import construct
from ekya.fleet.policy.andreas.greedy import Andreas
from ekya.fleet.policy.andreas.point import WAITS, point_of
from ekya.fleet.policy.andreas.settle import decision_of
from ekya.fleet.policy.andreas.worth import Worth
from ekya.fleet.policy.assignment import Decision, NodePart, whole
from ekya.fleet.policy.deep_edge.estimates import ANY_EDGE, EdgeEstimates, EdgeLimits
from ekya.fleet.policy.deep_edge.heuristic import Heuristic
from ekya.fleet.policy.deep_edge.joint import Joint
from ekya.fleet.policy.deep_edge.task import NO_MEMORY, EdgePlan, EdgePolicy, EdgeTask, Solver
from ekya.fleet.policy.okita.framework import Okita
from ekya.fleet.policy.okita.joint import OkitaJoint
from ekya.fleet.policy.view import FleetPolicy, FleetView, JobState


@dataclass(frozen=True, slots=True)
class Fair:
    """Gives equal shards, in the largest batches that fit into each machine's memory.

    Attributes:
        keeps_deadlines: whether it leaves out workers whose applications would be late; the schedulers of
            Hadoop, Yarn and Mesos ignore them.
    """

    keeps_deadlines: bool = False

    def __call__(self, task: EdgeTask) -> EdgePlan:
        """Returns the plan over all workers that it may use."""
        chosen, left_out = [], {}
        for node in task.workers:
            batch = task.max_batch(node)
            late = task.pressure(node, batch) if batch and self.keeps_deadlines else None
            if not batch or late is not None:
                left_out[node.name] = late or NO_MEMORY
            else:
                chosen.append((node, batch, FULL_GPU_MILLI))
        if not chosen:
            return EdgePlan((), inf, left_out)
        shards = whole({node.name: task.samples / len(chosen) for node, _, _ in chosen}, task.samples)
        parts = [
            NodePart(node.name, workers=1, chunks=shards[node.name], batch=batch)
            for node, batch, _ in chosen
            if shards[node.name]
        ]
        sample_s = task.sample_s(chosen)
        epoch_s = max(
            shards[node.name] * each_s for (node, _, _), each_s in zip(chosen, sample_s, strict=True)
        )
        return EdgePlan(tuple(parts), epoch_s, left_out)


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


@dataclass(frozen=True, slots=True)
class Terms:
    """Facts of a fleet from which policies are made. Each policy uses those of its paper.

    Attributes:
        slot_us: length of a slot (Okita).
        until_us: T, end of the last slot (Okita); None: no limit.
        restart_us: time in which a moved job starts again (ours for ANDREAS); None: moves cost nothing.
        estimates: of times and states (Deep-Edge, which cannot be made without).
        limits: of batches, memory and deadlines (Deep-Edge).
        shares_milli: to which trainings were throttled in their profiles (ours for Deep-Edge).
    """

    slot_us: int = 1800 * US_PER_S
    until_us: int | None = None
    restart_us: int | None = 60 * US_PER_S
    estimates: EdgeEstimates | None = None
    limits: EdgeLimits = ANY_EDGE
    shares_milli: tuple[int, ...] = tuple(range(100, FULL_GPU_MILLI, 100))


Make = Callable[[Terms], FleetPolicy]


def edge_policy(name: str, solver: Solver, terms: Terms) -> EdgePolicy:
    """Returns the policy of one of Deep-Edge's solvers.

    Raises:
        ValueError: there are no estimates.
    """
    if terms.estimates is None:
        raise ValueError(f"{name} needs estimates of times and states")
    return EdgePolicy(name, solver, terms.estimates, terms.limits)


def _worth(terms: Terms) -> Worth:
    if terms.restart_us is None:
        return Worth(moving_s=0.0, lost_epochs=0.0)
    return Worth(moving_s=us_to_seconds(terms.restart_us))


def _edge_joint(terms: Terms) -> EdgePolicy:
    shares = tuple(sorted({FULL_GPU_MILLI, *terms.shares_milli}, reverse=True))
    return edge_policy("deep-edge-joint", Joint(shares), terms)


OF_ANDREAS: Mapping[str, Make] = MappingProxyType(
    {
        "andreas": lambda _: Andreas(),
        "worth": _worth,
        "fifo": lambda _: FIFO,
        "edf": lambda _: EDF,
        "priority": lambda _: PRIORITY,
    }
)
OF_OKITA: Mapping[str, Make] = MappingProxyType(
    {
        "okita": lambda terms: Okita(terms.slot_us, until_us=terms.until_us),
        "okita-joint": lambda terms: OkitaJoint(terms.slot_us, until_us=terms.until_us),
        "okita-fifo": lambda terms: OkitaFifo(terms.slot_us),
        "drf": lambda terms: Drf(terms.slot_us),
        "oasis": lambda terms: Oasis(terms.slot_us),
    }
)
OF_DEEP_EDGE: Mapping[str, Make] = MappingProxyType(
    {
        "deep-edge": lambda terms: edge_policy("deep-edge", Heuristic(), terms),
        "deep-edge-joint": _edge_joint,
        "fair": lambda terms: edge_policy("fair", Fair(), terms),
        "fair-kept": lambda terms: edge_policy("fair-kept", Fair(keeps_deadlines=True), terms),
    }
)
"""Policies that can play in each paper's worlds: its own to the letter, ours, and the baselines."""

PLAYED: Mapping[str, Make] = MappingProxyType({**OF_ANDREAS, **OF_OKITA, **OF_DEEP_EDGE})

THROTTLING = frozenset({"deep-edge-joint"})
"""Policies that throttle workers, so that they need profiles of throttled trainings."""
