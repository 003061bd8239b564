"""Learning curve of the paper's micro-profile, and of a retraining in progress (paper §4.3, §5).

    error(x) = 1 / (b0 · x + b1) + b2        with b0, b1, b2 ≥ 0

It is that of Optimus (the paper's reference 64). x counts work in crops seen: epochs times crops in an epoch.
SGD has no other clock, so a curve measured on a small subset for a few epochs also predicts more data and
more epochs. For a fixed b2 the rest is linear, 1 / (error − b2) = b0 · x + b1, and ``scipy.optimize.nnls``
solves it. The inverse distorts distances, so each row is weighted by the derivative that turns a residual of
the inverse back into one of the error; later points count more, since the extrapolation starts there.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

LEAST_ERROR = 1e-3
"""A few dozen crops cannot show a smaller error; keeps the inverse finite."""

COARSE, FINE = 7, 4
"""Grid points for b2: over its whole range, and then on either side of the best of these."""


@dataclass(frozen=True, slots=True)
class LearningCurve:
    """Accuracy over work, for x in crops seen; non-decreasing."""

    b0: float
    b1: float
    b2: float

    def accuracy_at(self, x: float) -> float:
        """Returns the validation accuracy after ``x`` crops seen, in [0, 1]."""
        inverse = self.b0 * max(0.0, x) + self.b1
        return min(1.0, max(0.0, 1.0 - self.b2 - 1.0 / inverse)) if inverse > 0.0 else 0.0


def fit_optimus(xs: Sequence[float], accuracies: Sequence[float]) -> LearningCurve:
    """Returns the inverse curve that meets the points best; noise is ignored.

    Args:
        xs: crops seen at each point, rising, the first usually 0.
        accuracies: validation accuracy in [0, 1] at each point.

    Raises:
        ValueError: no points, lengths that differ, xs that do not rise, or values out of range.
    """
    _check(xs, accuracies)
    points = _Points.of(np.asarray(xs, dtype=np.float64), np.asarray(accuracies, dtype=np.float64))
    # Below the least error, at which the inverse would be infinite.
    largest = 0.98 * float(points.error.min())
    spacing = largest / (COARSE - 1)
    coarse = [_solve(points, float(b2)) for b2 in np.linspace(largest, 0.0, COARSE)]
    near = _best(coarse).b2 + spacing * np.linspace(1.0, -1.0, 2 * FINE + 1)
    fine = [_solve(points, float(b2)) for b2 in near if 0.0 <= b2 <= largest]
    return _best([*coarse, *fine])


@dataclass(frozen=True, slots=True, eq=False)
class _Points:
    """Points as a fit needs them: x in parts of the last one, errors, and the weight of each point."""

    design: NDArray[np.float64]
    error: NDArray[np.float64]
    weights: NDArray[np.float64]
    scale: float

    @staticmethod
    def of(x: NDArray[np.float64], y: NDArray[np.float64]) -> "_Points":
        scale = float(x[-1]) if x[-1] > 0.0 else 1.0
        return _Points(
            design=np.column_stack([x / scale, np.ones_like(x)]),
            error=np.maximum(1.0 - y, LEAST_ERROR),
            weights=np.arange(1, len(x) + 1, dtype=np.float64) / len(x),
            scale=scale,
        )


def _solve(points: _Points, b2: float) -> tuple[LearningCurve, float]:
    """Returns the curve with this floor that fits best, and its weighted squared error."""
    part = points.error - b2
    target = 1.0 / part
    rows = points.weights * part**2
    b, _ = nnls(points.design * rows[:, None], rows * target)
    inverse = points.design @ b
    # No curve through these points: 0 has no inverse.
    if inverse.min() <= 0.0:
        return LearningCurve(0.0, float(target[-1]), b2), math.inf
    residual = points.weights * (1.0 / inverse - part)
    return LearningCurve(float(b[0]) / points.scale, float(b[1]), b2), float(residual @ residual)


def _best(solutions: Sequence[tuple[LearningCurve, float]]) -> LearningCurve:
    """Returns the curve of least cost; of equal costs (up to rounding) that with the largest b2.

    The largest b2 promises least.
    """
    least = min(cost for _, cost in solutions)
    return max((curve for curve, cost in solutions if cost <= least + 1e-12), key=lambda curve: curve.b2)


def _check(xs: Sequence[float], accuracies: Sequence[float]) -> None:
    if not xs or len(xs) != len(accuracies):
        raise ValueError("a curve needs as many accuracies as points, and at least one")
    if xs[0] < 0 or any(b <= a for a, b in pairwise(xs)):
        raise ValueError("the work at the points of a curve must rise from 0 or more")
    if not all(0.0 <= accuracy <= 1.0 for accuracy in accuracies):
        raise ValueError("accuracies lie between 0 and 1")
