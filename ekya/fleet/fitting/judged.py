"""Errors of estimates on held-out points (Deep-Edge, Table I)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ekya.fleet.fitting.boosted import QUANTITIES
from ekya.fleet.policy.deep_edge.estimates import ANY_EDGE, EdgeEstimates, EdgeLimits, ProfilePoint

P = TypeVar("P")

TEST_PART = 0.16
"""Part of the points that is held out: the paper's 264 of 1650, 72 of 450 and 120 of 750."""

SURE = 99.0
"""Percentile of the errors that limits allow for."""


@dataclass(frozen=True, slots=True)
class JudgedModel:
    """A row of Table I.

    Attributes:
        kind, function: kind of machine, and estimated function.
        mape, deviation: mean absolute percentage error over the test points, and its standard deviation.
    """

    kind: str
    function: str
    train: int
    test: int
    mape: float
    deviation: float


@dataclass(frozen=True, slots=True)
class Models:
    """Models fitted to a part of the points of some kinds of machines.

    Attributes:
        estimates: of times and states.
        limits: include the errors of the estimates.
        train: points that they have learned from.
        tests: held-out points by kind of machine.
    """

    estimates: EdgeEstimates
    limits: EdgeLimits
    train: tuple[ProfilePoint, ...]
    tests: Mapping[str, tuple[ProfilePoint, ...]]

    @property
    def rows(self) -> list[JudgedModel]:
        """Rows of each kind in the order of Table I, except those without a test point."""
        rows = []
        for (kind, test), quantity in product(self.tests.items(), QUANTITIES):
            own = [point for point in test if quantity.label(point) > 0]
            if own:
                values = [quantity.estimate(self.estimates, point) for point in own]
                true = [quantity.label(point) for point in own]
                learned = sum(point.kind == kind and quantity.label(point) > 0 for point in self.train)
                rows.append(row(kind, quantity.name, learned, values, true))
        return rows


def split(points: Sequence[P], seed: int = 0) -> tuple[list[P], list[P]]:
    """Splits points at random into training and test points."""
    order = np.random.default_rng(seed).permutation(len(points))
    test = round(TEST_PART * len(points))
    return [points[at] for at in order[test:]], [points[at] for at in order[:test]]


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
        deadline_s: of the applications; None where it is not known yet, and all points count.
    """
    mem, execs = [], []
    for point in test:
        after = estimates.state_after(point.training)
        mem.append(point.after.mem / after.mem - 1)
        expected_s = estimates.exec_s(point.kind, point.app, after)
        if deadline_s is None or deadline_s / 2 <= expected_s <= deadline_s:
            execs.append(point.exec_s / expected_s - 1)
    return replace(
        limits,
        mem_error=max(0.0, float(np.percentile(mem, SURE))),
        exec_error=max(0.0, float(np.percentile(execs, SURE))) if execs else 0.0,
    )


def row(kind: str, function: str, train: int, values: Sequence[float], true: Sequence[float]) -> JudgedModel:
    """Returns the row of estimated values beside the true ones."""
    errors: NDArray[np.float64] = 100 * np.abs(np.array(values) / np.array(true) - 1)
    return JudgedModel(kind, function, train, len(true), float(errors.mean()), float(errors.std()))
