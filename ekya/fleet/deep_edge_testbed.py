"""Models of Deep-Edge's testbed, from as many data points as the paper has."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ekya.fleet.fitting.boosted import QUANTITIES, BoostedEstimates
from ekya.fleet.fitting.judged import reckoned, split
from ekya.fleet.policy.deep_edge.estimates import EdgeEstimates, EdgeLimits
from ekya.fleet.policy.deep_edge.policy import EdgePolicy
from ekya.fleet.policy.deep_edge.profile import ProfilePoint
from ekya.fleet.policy.deep_edge.solvers import SOLVERS, holds_back
from ekya.fleet.sim.deep_edge.devices import BATCH_MAX, BATCH_MIN, MEM_LIMIT, NANO, TX2
from ekya.fleet.sim.deep_edge.workload import DEADLINE_S, POINTS, profile_points

KNOWN = EdgeLimits(BATCH_MIN, BATCH_MAX, MEM_LIMIT)
"""Limits of whom estimates never mislead."""

HELD_MILLI = tuple(range(100, 1000, 100))
"""Shares at which ours profiles as many points again as the paper has."""

_KINDS = (NANO, TX2)


@dataclass(frozen=True, slots=True)
class Models:
    """What was learned, and how sure one can be of it.

    Attributes:
        estimates: of both kinds of machines.
        limits: with their errors.
        train: what the estimates have learned from.
        tests: by kind, what they have not.
    """

    estimates: EdgeEstimates
    limits: EdgeLimits
    train: tuple[ProfilePoint, ...]
    tests: Mapping[str, tuple[ProfilePoint, ...]]


def learned(held_back: bool, fitted: Callable[[], object] = lambda: None) -> Models:
    """From the paper's number of data points, split as the paper has them.

    Args:
        held_back: whether as many points again are there of trainings that are held back.
        fitted: told of each regressor.
    """
    train, tests = list[ProfilePoint](), dict[str, tuple[ProfilePoint, ...]]()
    for kind in _KINDS:
        sets = [profile_points(kind, POINTS[kind])]
        if held_back:
            sets.append(profile_points(kind, POINTS[kind], shares_milli=HELD_MILLI))
        halves = [split(points) for points in sets]
        train += [point for own, _ in halves for point in own]
        tests[kind] = tuple(point for _, own in halves for point in own)
    estimates = BoostedEstimates(train, fitted=fitted)
    limits = reckoned(estimates, [point for test in tests.values() for point in test], DEADLINE_S, KNOWN)
    return Models(estimates, limits, tuple(train), tests)


def deciders(names: tuple[str, ...], done: Callable[[float], object]) -> dict[str, EdgePolicy]:
    """Those who decide, by the models that each of them needs; these are fitted once.

    Args:
        names: of ``SOLVERS``.
        done: told again and again which part of the fitting is done; it takes seconds.
    """
    needs = sorted({holds_back(SOLVERS[name]) for name in names})
    steps, count = len(needs) * len(_KINDS) * len(QUANTITIES), 0

    def fitted() -> None:
        nonlocal count
        count += 1
        done(count / steps)

    models = {held_back: learned(held_back, fitted) for held_back in needs}

    def decider(name: str) -> EdgePolicy:
        own = models[holds_back(SOLVERS[name])]
        return EdgePolicy(name, SOLVERS[name], own.estimates, own.limits)

    return {name: decider(name) for name in names}
