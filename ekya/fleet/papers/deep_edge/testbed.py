"""Models of Deep-Edge's testbed, fitted to as many data points as in the paper."""

from collections.abc import Iterable, Sequence

from ekya.fleet.papers.deep_edge.boosted import (
    BoostedEstimates,
    JudgedModel,
    Models,
    boosted,
    estimated,
    reckoned,
    row,
    split,
)
from ekya.fleet.papers.deep_edge.laws import BATCH_MAX, BATCH_MIN, MEM_LIMIT, NANO, TX2
from ekya.fleet.papers.deep_edge.workload import DEADLINE_S, POINTS, profile_points
from ekya.fleet.papers.registry import PLAYED, THROTTLING, Terms
from ekya.fleet.policy.deep_edge.estimates import EdgeLimits, ParameterServerPoint, ProfilePoint
from ekya.fleet.policy.view import FleetPolicy

KNOWN = EdgeLimits(BATCH_MIN, BATCH_MAX, MEM_LIMIT)
"""Limits for estimates without an error."""

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
    limits = reckoned(estimates, [point for test in tests.values() for point in test], DEADLINE_S, KNOWN)
    return Models(estimates, limits, tuple(train), tests)


def deciders(names: Iterable[str]) -> dict[str, FleetPolicy]:
    """Returns the policies by name; policies that need the same models share them. Fitting takes seconds."""
    models = {held: learned(held) for held in {name in THROTTLING for name in names}}
    terms = {held: Terms(estimates=own.estimates, limits=own.limits) for held, own in models.items()}
    return {name: PLAYED[name](terms[name in THROTTLING]) for name in names}


def judged_parameter_server(
    train: Sequence[ParameterServerPoint], test: Sequence[ParameterServerPoint]
) -> list[JudgedModel]:
    """Returns the parameter server's rows: its CPU and memory while workers push to it."""
    rows = []
    for metric in ("cpu", "mem"):
        labels, true = ([getattr(point.after, metric) for point in points] for points in (train, test))
        regressor = boosted([_row(point) for point in train], labels)
        values = [estimated(regressor, _row(point)) for point in test]
        rows.append(row(test[0].kind, f"EstState {metric}", len(train), values, true))
    return rows


def _row(point: ParameterServerPoint) -> tuple[float, ...]:
    pushes = sum(1 / batch for batch in point.batches)
    return (point.before.cpu, point.before.mem, len(point.batches), pushes)
