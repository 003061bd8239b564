"""Optimal schedule of one scheduling point by Equation (1), as an integer programme; for small cases only."""

from dataclasses import dataclass

import numpy as np
from optimum.programme import Programme, UnsolvedError

from ekya.fleet.policy.andreas.point import Ints, Point


@dataclass(frozen=True, slots=True)
class Optimum:
    """An optimal schedule.

    Attributes:
        config, node: of each job, or ``WAITS``.
        value: of (1).
    """

    config: Ints
    node: Ints
    value: float


@dataclass(frozen=True, slots=True)
class _Choice:
    """A job in a configuration on a node; its binaries are x (it runs so) and α (it ends there first)."""

    job: int
    config: int
    node: int
    takes_s: float


def exact(point: Point, postponing: float, period_s: float, limit_s: float = 60.0) -> Optimum:
    """Minimises Σ ω_j (τ_j + ρ τ̂_j) + Σ α_jn π_jn over all schedules, also those that leave GPUs idle.

    Constraints: a job runs at most once; a node has a limited number of GPUs; on a node in use one of its
    jobs is marked as the first to end, and none of its jobs ends earlier.

    Args:
        postponing: ρ.
        period_s: longest time until the next scheduling point.

    Raises:
        UnsolvedError: no optimum within the time limit.
    """
    choices, programme = list(_choices(point)), Programme()
    tardiness = [point.weight[one.job] * point.tardiness_s[one.job, one.config] for one in choices]
    waiting = postponing * point.weight * np.maximum(0.0, period_s + point.longest_s - point.due_in_s)
    late = [cost - waiting[one.job] for cost, one in zip(tardiness, choices, strict=True)]
    # The first variables, so a choice and its variable have the same index.
    runs = programme.variables(late, 1.0, whole=True)
    ends_first = programme.variables([point.cost[one.job, one.config] for one in choices], 1.0, whole=True)
    for job in range(len(point.states)):
        programme.require({v: 1.0 for v in runs if choices[v].job == job}, most=1)
    for node, size in enumerate(point.node_gpus):
        here = [v for v in runs if choices[v].node == node]
        programme.require({v: float(point.gpus[choices[v].config]) for v in here}, most=size)
        firsts = {ends_first[v]: -1.0 for v in here}
        for v in here:
            programme.require({v: 1.0} | firsts, most=0)
            programme.require({ends_first[v]: 1.0, v: -1.0}, most=0)
            for job in {choices[u].job for u in here} - {choices[v].job}:
                sooner = [
                    u for u in here if choices[u].job == job and choices[u].takes_s < choices[v].takes_s
                ]
                if sooner:
                    programme.require({ends_first[v]: 1.0} | dict.fromkeys(sooner, 1.0), most=1)
    found = programme.solved(limit_s, gap=0.0)
    if found.status != 0:
        raise UnsolvedError(f"{len(choices)} choices of {len(point.states)} jobs: {found.message}")
    config, node_of = point.waiting, point.waiting
    for chosen, choice in zip(found.x[runs], choices, strict=True):
        if chosen > 0.5:
            config[choice.job], node_of[choice.job] = choice.config, choice.node
    return Optimum(config, node_of, float(found.fun + waiting.sum()))


def _choices(point: Point) -> list[_Choice]:
    begin = np.cumsum([0, *(len(shelf.names) for shelf in point.shelves)])
    return [
        _Choice(job, config, node, float(point.takes_s[job, config]))
        for job in range(len(point.states))
        for config in range(len(point.gpus))
        for node in range(begin[point.shelf[config]], begin[point.shelf[config] + 1])
        if np.isfinite(point.takes_s[job, config])
    ]
