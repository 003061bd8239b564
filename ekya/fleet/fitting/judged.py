"""Errors of estimates on held-out points (Deep-Edge, Table I)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ekya.fleet.fitting.boosted import (
    COMPUTE,
    EXEC,
    STATE_CPU,
    STATE_GPU,
    STATE_MEM,
    UPDATE,
    Quantity,
)
from ekya.fleet.policy.deep_edge.estimates import ANY_EDGE, EdgeEstimates, EdgeLimits, Training
from ekya.fleet.policy.deep_edge.profile import ProfilePoint

P = TypeVar("P")

TEST_PART = 0.16
"""Part of the points that is held out: the paper's 264 of 1650, 72 of 450 and 120 of 750."""

SURE = 99.0
"""Percentile of the errors that limits allow for."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A row of Table I.

    Attributes:
        kind, function: kind of machine, and estimated function.
        train, test: numbers of points.
        mape, deviation: mean absolute percentage error over the test points, and its standard deviation.
    """

    kind: str
    function: str
    train: int
    test: int
    mape: float
    deviation: float


def split(points: Sequence[P], seed: int = 0) -> tuple[list[P], list[P]]:
    """Splits points at random into training and test points."""
    order = np.random.default_rng(seed).permutation(len(points))
    test = round(TEST_PART * len(points))
    return [points[at] for at in order[test:]], [points[at] for at in order[:test]]


def judged(
    estimates: EdgeEstimates, train: Sequence[ProfilePoint], test: Sequence[ProfilePoint]
) -> list[Judged]:
    """Returns the rows of one kind of machine in the order of Table I, except rows without a test point."""
    found: dict[Quantity, Callable[[ProfilePoint], float]] = {
        COMPUTE: lambda point: estimates.compute_s(_training(point)),
        UPDATE: lambda point: _update_s(estimates, point),
        STATE_GPU: lambda point: estimates.state_after(_training(point)).gpu,
        STATE_CPU: lambda point: estimates.state_after(_training(point)).cpu,
        STATE_MEM: lambda point: estimates.state_after(_training(point)).mem,
        EXEC: lambda point: estimates.exec_s(point.kind, point.app, point.after),
    }
    rows = []
    for quantity, estimate in found.items():
        own = [point for point in test if quantity.label(point) > 0]
        if own:
            values, true = [estimate(point) for point in own], [quantity.label(point) for point in own]
            learned = sum(quantity.label(point) > 0 for point in train)
            rows.append(row(own[0].kind, quantity.name, learned, values, true))
    return rows


def reckoned(
    estimates: EdgeEstimates,
    test: Sequence[ProfilePoint],
    deadline_s: float | None,
    limits: EdgeLimits = ANY_EDGE,
) -> EdgeLimits:
    """Returns limits with the errors by which estimates of memory and of execution times are too low.

    For applications only points near the decision count, where the estimate is between half the deadline and
    the deadline.

    Args:
        estimates: to be judged.
        test: held-out points.
        deadline_s: of the applications; None where it is not known yet, and all points count.
        limits: all other limits.
    """
    mem = [point.after.mem / estimates.state_after(_training(point)).mem - 1 for point in test]
    execs = []
    for point in test:
        expected_s = estimates.exec_s(point.kind, point.app, estimates.state_after(_training(point)))
        if deadline_s is None or deadline_s / 2 <= expected_s <= deadline_s:
            execs.append(point.exec_s / expected_s - 1)
    return replace(
        limits,
        mem_error=max(0.0, float(np.percentile(mem, SURE))),
        exec_error=max(0.0, float(np.percentile(execs, SURE))) if execs else 0.0,
    )


def _training(point: ProfilePoint) -> Training:
    return Training(point.kind, point.before, point.batch, point.share_milli)


def _update_s(estimates: EdgeEstimates, point: ProfilePoint) -> float:
    """Estimates the update time of the point's worker; of the others only batches are known and needed."""
    others = [Training(point.kind, point.before, batch) for batch in point.batches[1:]]
    return estimates.update_s([_training(point), *others], point.parameter_server)[0]


def row(kind: str, function: str, train: int, values: Sequence[float], true: Sequence[float]) -> Judged:
    """Returns the row of estimated values beside the true ones."""
    errors: NDArray[np.float64] = 100 * np.abs(np.array(values) / np.array(true) - 1)
    return Judged(kind, function, train, len(true), float(errors.mean()), float(errors.std()))
