"""The learning curve of the micro-profiler (paper §4.3, after Optimus, its reference 64).

    error(x) = 1 / (b0 · x + b1) + b2        with b0, b1, b2 ≥ 0

x counts work in crops seen: epochs times crops in an epoch. SGD has no other clock, so a curve measured
on a small subset for a few epochs speaks about more data and more epochs alike.

For a fixed b2 the rest is linear, 1 / (error − b2) = b0 · x + b1, and ``scipy.optimize.nnls`` solves it;
b2 is searched over a grid. Inverting the error distorts distances, so each row is weighted by
(error − b2)², the derivative that turns a residual of the inverse back into one of the error; later
points count more, since the extrapolation starts where they are.

**Honesty about the part nobody has seen.** A few points on a few dozen validation crops cannot tell a
line from a bend, and the curve alone would happily run to 1.0. Two limits hold beyond the last point:

- *A bend is assumed.* Each doubling of the work may add at most ``gain_per_doubling`` of what all
  the work before it gave. On the curve with b2 = 0 that ratio is 1 / (1 + 2u), where u = b0 · x / b1 is
  how far the error has bent at the last point; it nears 1 only while no bend is visible. The default
  of 1/2 reads such points as u = 1/2: a third of the reducible error is gone.
- *Noise is not gain.* An accuracy a on n crops has the variance a(1 − a)/n. With g the fitted gain over
  the points seen and s² the variance of the difference between two halves of them, the unseen gain is
  multiplied by g² / (g² + s²), which is what is left of it if the true gain were drawn around zero.

A prior, a curve of the same family from earlier windows, adds points beyond the last one: today's level
plus the gain it knows from there. It lifts the first limit as far as its own gain goes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

LEAST_ERROR = 1e-3
"""No few dozen crops can show a smaller error; keeps the inverse finite."""

COARSE, FINE = 7, 4
"""Grid points for b2: over its whole range, and then on either side of the best of these."""


@dataclass(frozen=True, slots=True)
class FitLimits:
    """How far points may be trusted.

    Attributes:
        gain_per_doubling: gain that each doubling of the work may add beyond the last point, as a part
            of the gain seen.
        dip: where the accuracy falls by more than this from the first point to the second, training
            began by losing ground (a new head, a new class) and the first point is not on the curve.
        prior_weight: weight of each point taken from a prior; the last measured point has 1.
    """

    gain_per_doubling: float = 0.5
    dip: float = 0.05
    prior_weight: float = 0.5


DEFAULT_LIMITS = FitLimits()


@dataclass(frozen=True, slots=True)
class LearningCurve:
    """Accuracy over work; non-decreasing.

    Attributes:
        b0, b1, b2: the curve, for x in crops seen.
        last_x: work at the last measured point.
        reliability: part of the gain beyond ``last_x`` that is believed, in [0, 1].
        doubling_gain: the most that a doubling of the work adds beyond ``last_x``.
    """

    b0: float
    b1: float
    b2: float
    last_x: float
    reliability: float
    doubling_gain: float

    def accuracy_at(self, x: float) -> float:
        """Validation accuracy after ``x`` crops seen, in [0, 1]."""
        if x <= self.last_x:
            return _clip(self._raw(x))
        last = self._raw(self.last_x)
        if self.last_x <= 0.0:
            return _clip(last)
        beyond = self.reliability * (self._raw(x) - last)
        return _clip(last + min(beyond, self.doubling_gain * math.log2(x / self.last_x)))

    def _raw(self, x: float) -> float:
        inverse = self.b0 * max(0.0, x) + self.b1
        return 1.0 - self.b2 - 1.0 / inverse if inverse > 0.0 else 0.0


def fit(
    xs: Sequence[float],
    accuracies: Sequence[float],
    *,
    validation_crops: int | None = None,
    prior: LearningCurve | None = None,
    limits: FitLimits = DEFAULT_LIMITS,
) -> LearningCurve:
    """Fits the curve to points of one training; one point, or points that fall, give a flat one.

    Args:
        xs: crops seen at each point, rising, the first usually 0.
        accuracies: validation accuracy in [0, 1] at each point.
        validation_crops: crops behind each accuracy; None trusts the points.
        prior: what the same family did in earlier windows, in the same unit of x.
        limits: how far points may be trusted.

    Raises:
        ValueError: no points, lengths that differ, xs that do not rise, or values out of range.
    """
    _check(xs, accuracies)
    x = np.asarray(xs, dtype=np.float64)
    y = np.asarray(accuracies, dtype=np.float64)
    if len(x) >= 3 and y[1] < y[0] - limits.dip:
        x, y = x[1:], y[1:]
    weights = np.arange(1, len(x) + 1, dtype=np.float64) / len(x)
    last_x = float(x[-1])
    b0, b1, b2 = _solve(x, y, weights)
    curve = LearningCurve(b0, b1, b2, last_x, 1.0, 0.0)
    seen = max(0.0, curve.accuracy_at(last_x) - max(curve.accuracy_at(float(x[0])), float(y[0])))
    reliability = _reliability(seen, y, validation_crops)
    doubling_gain = limits.gain_per_doubling * seen
    if prior is None or last_x <= 0.0:
        return LearningCurve(b0, b1, b2, last_x, reliability, doubling_gain)

    level = curve.accuracy_at(last_x)
    prior_x = last_x * np.array([2.0, 4.0, 8.0])
    known = np.array([prior.accuracy_at(float(at)) for at in prior_x]) - prior.accuracy_at(last_x)
    prior_y = np.clip(level + known, 0.0, 1.0)
    b0, b1, b2 = _solve(
        np.concatenate([x, prior_x]),
        np.concatenate([y, prior_y]),
        np.concatenate([weights, np.full(3, limits.prior_weight)]),
    )
    prior_doubling = float(np.diff(known, prepend=0.0).max())
    believed = max(reliability, limits.prior_weight / (1.0 + limits.prior_weight))
    return LearningCurve(b0, b1, b2, last_x, believed, max(doubling_gain, prior_doubling))


def _solve(
    x: NDArray[np.float64], y: NDArray[np.float64], weights: NDArray[np.float64]
) -> tuple[float, float, float]:
    """(b0, b1, b2) with the least weighted squared error; among equals the lowest accuracy far out."""
    error = np.maximum(1.0 - y, LEAST_ERROR)
    scale = float(x[-1]) if x[-1] > 0.0 else 1.0
    design = np.column_stack([x / scale, np.ones_like(x)])
    largest = 0.98 * float(error.min())
    spacing = largest / (COARSE - 1)
    coarse = [_solve_for(b2, design, error, weights) for b2 in np.linspace(largest, 0.0, COARSE)]
    middle = _best(coarse).b2
    near = middle + spacing * np.linspace(1.0, -1.0, 2 * FINE + 1)
    fine = [_solve_for(float(b2), design, error, weights) for b2 in near if 0.0 <= b2 <= largest]
    best = _best([*coarse, *fine])
    return best.b0 / scale, best.b1, best.b2


@dataclass(frozen=True, slots=True)
class _Solution:
    b0: float
    b1: float
    b2: float
    cost: float


def _solve_for(
    b2: float, design: NDArray[np.float64], error: NDArray[np.float64], weights: NDArray[np.float64]
) -> _Solution:
    part = error - b2
    rows = weights * part**2
    (b0, b1), _ = nnls(design * rows[:, None], rows / part)
    inverse = design @ np.array([b0, b1])
    if inverse.min() <= 0.0:
        return _Solution(0.0, 1.0 / float(part[-1]), b2, math.inf)
    residual = weights * (1.0 / inverse - part)
    return _Solution(float(b0), float(b1), float(b2), float(residual @ residual))


def _best(solutions: Sequence[_Solution]) -> _Solution:
    """The least cost; what differs by rounding alone goes to the larger b2, which promises less."""
    least = min(solution.cost for solution in solutions)
    return max((s for s in solutions if s.cost <= least + 1e-12), key=lambda s: s.b2)


def _reliability(seen: float, y: NDArray[np.float64], validation_crops: int | None) -> float:
    if validation_crops is None:
        return 1.0
    if seen <= 0.0:
        return 0.0
    # An accuracy of exactly 0 or 1 on few crops is not free of noise: one crop's worth is kept.
    mean = float(np.clip(y.mean(), 1 / (validation_crops + 2), 1 - 1 / (validation_crops + 2)))
    variance = mean * (1.0 - mean) / max(1, validation_crops)
    halves = max(1.0, len(y) / 2)
    return seen**2 / (seen**2 + 2.0 * variance / halves)


def _check(xs: Sequence[float], accuracies: Sequence[float]) -> None:
    if not xs or len(xs) != len(accuracies):
        raise ValueError("a curve needs as many accuracies as points, and at least one")
    if xs[0] < 0 or any(b <= a for a, b in pairwise(xs)):
        raise ValueError("the work at the points of a curve must rise from 0 or more")
    if not all(0.0 <= accuracy <= 1.0 for accuracy in accuracies):
        raise ValueError("accuracies lie between 0 and 1")


def _clip(accuracy: float) -> float:
    return min(1.0, max(0.0, accuracy))
