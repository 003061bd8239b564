"""Models of machines that a user has profiled, with their errors."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ekya.core.errors import UserError
from ekya.fleet.fitting.boosted import LEAF, BoostedEstimates
from ekya.fleet.fitting.judged import Models, reckoned, split
from ekya.fleet.fitting.points_file import read_points, read_tried
from ekya.fleet.policy.deep_edge.estimates import ANY_EDGE
from ekya.fleet.policy.deep_edge.profile import ProfilePoint
from ekya.fleet.policy.fitted import FittedHosts

LEAST_POINTS = 2 * LEAF + 2
"""Minimum per kind of machine: a sixth is held out, and the rest has to fill two leaves of a tree."""


def measured_models(points: Sequence[ProfilePoint], origin: str) -> Models:
    """Fits models to points.

    Points of real trainings (compute and update times, no state) are training points, but do not count
    towards ``LEAST_POINTS``.

    Args:
        origin: of the points, as named in messages.

    Raises:
        UserError: there are too few of a kind.
    """
    train, tests = list[ProfilePoint](), dict[str, tuple[ProfilePoint, ...]]()
    for kind in _profiled(points, origin):
        own = [point for point in points if point.kind == kind]
        learns, held_out = split([point for point in own if point.after.mem > 0])
        train += [*learns, *(point for point in own if point.after.mem <= 0)]
        tests[kind] = tuple(held_out)
    estimates = BoostedEstimates(train, update_unknown_s=0.0)
    batches = [point.batch for point in points if point.after.mem > 0]
    within = replace(ANY_EDGE, batch_min=min(batches), batch_max=max(batches))
    limits = reckoned(estimates, [point for own in tests.values() for point in own], None, within)
    return Models(estimates, limits, tuple(train), tests)


def _profiled(points: Sequence[ProfilePoint], origin: str) -> list[str]:
    """Returns the kinds of machines, each of which has enough points."""
    counts = {
        kind: sum(point.kind == kind and point.after.mem > 0 for point in points)
        for kind in sorted({point.kind for point in points})
    }
    if not counts:
        raise UserError(f"{origin} holds no points; profile a machine with ekya fleet profile")
    for kind, count in counts.items():
        if count < LEAST_POINTS:
            raise UserError(
                f"{origin}: {count} points of a {kind} are too few to learn from; profile it until there are "
                f"{LEAST_POINTS}, with more --batches, --cpu or --mem"
            )
    return [*counts]


def fitted_to(path: Path) -> FittedHosts:
    """Returns models of a file of ``ekya fleet profile``, as Deep-Edge's tiers use them.

    Raises:
        UserError: there are too few points of a kind, or two trainings were profiled on one.
    """
    models = measured_models(read_points(path), str(path))
    blocks: dict[str, int] = {}
    for work in sorted({tried.work for tried in read_tried(path)}, key=str):
        if work.kind in blocks:
            raise UserError(f"{path}: two trainings were profiled on a {work.kind}; keep one in a file")
        blocks[work.kind] = work.trainable_blocks
    return FittedHosts(models.estimates, models.limits, blocks)
