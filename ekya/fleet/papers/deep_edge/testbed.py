"""Models of Deep-Edge's testbed, fitted to as many data points as in the paper."""

from collections.abc import Iterable

from ekya.fleet.papers.deep_edge.boosted import BoostedEstimates, Models, reckoned, split
from ekya.fleet.papers.deep_edge.laws import NANO, TX2
from ekya.fleet.papers.deep_edge.workload import DEADLINE_S, POINTS, profile_points
from ekya.fleet.papers.registry import PLAYED, THROTTLING, Terms
from ekya.fleet.policy.deep_edge.estimates import ProfilePoint
from ekya.fleet.policy.view import FleetPolicy

HELD_MILLI = tuple(range(100, 1000, 100))
"""Shares of the throttled trainings that our solver profiles, as many points again as in the paper."""

_KINDS = (NANO, TX2)


def learned(held_back: bool) -> Models:
    """Fits the models to the paper's number of data points, with the paper's split.

    Args:
        held_back: adds as many points again of trainings that are throttled to a share.
    """
    train, tests = list[ProfilePoint](), dict[str, tuple[ProfilePoint, ...]]()
    for kind in _KINDS:
        sets = [profile_points(kind, POINTS[kind])]
        if held_back:
            sets.append(profile_points(kind, POINTS[kind], shares_milli=HELD_MILLI))
        halves = [split(points) for points in sets]
        train += [point for own, _ in halves for point in own]
        tests[kind] = tuple(point for _, own in halves for point in own)
    estimates = BoostedEstimates(train)
    limits = reckoned(estimates, [point for test in tests.values() for point in test], DEADLINE_S)
    return Models(estimates, limits, tuple(train), tests)


def deciders(names: Iterable[str]) -> dict[str, FleetPolicy]:
    """Returns the policies by name; policies that need the same models share them. Fitting takes seconds."""
    models = {held: learned(held) for held in {name in THROTTLING for name in names}}
    terms = {held: Terms(estimates=own.estimates, limits=own.limits) for held, own in models.items()}
    return {name: PLAYED[name](terms[name in THROTTLING]) for name in names}
