"""Learning curve of a retraining in progress, or of the paper's micro-profile (paper §4.3, §5).

    error(x) = (b0 · x + b1)^-c + b2        with b0, b1, b2 ≥ 0 and 0 < c ≤ 1

x counts work in crops seen: epochs times crops in an epoch. SGD has no other clock, so a curve measured on a
small subset for a few epochs also predicts more data and more epochs.

With c = 1 this is the curve of Optimus (the paper's reference 64), and ``fit_optimus`` is the paper's plain
version: the one (b0, b1, b2) that meets the points best. A few points do not determine how the error goes on
to fall, though. The best inverse may put a floor b2 right below the last point, or none at all, and its
forecasts differ by tenths. So ``fit_mixture``, for retrainings, considers several shapes: slow power laws and
the inverse, each with no floor, and with a low one. Each is fitted, and they are averaged by

    weight = prior · exp(−squared residuals / 2 σ²)

where σ is the noise of the points. The prior favours no floor: measured curves show one late, if at all. The
disagreement of the shapes at some x measures the uncertainty there.

For a fixed (c, b2) the rest is linear, (error − b2)^(-1/c) = b0 · x + b1, and ``scipy.optimize.nnls`` solves
it. The inverse distorts distances, so each row is weighted by the derivative that turns a residual of the
inverse back into one of the error; later points count more, since the extrapolation starts there.

**Limits of the extrapolation.** A few points on a few dozen validation crops cannot distinguish a line from
a bend, and a curve alone would run to 1.0. Two limits hold beyond the last point:

- *A bend is assumed.* Each doubling of the work may add at most ``GAIN_PER_DOUBLING`` of what all the work
  before it gave. On the inverse with b2 = 0 that ratio is 1 / (1 + 2u), where u = b0 · x / b1 is how far the
  error has bent at the last point; it nears 1 only while no bend is visible. The default of 1/2 reads such
  points as u = 1/2: a third of the reducible error is gone.
- *Noise is not gain.* An accuracy a on n crops has the variance a(1 − a)/n. With g the fitted gain over the
  points seen and s² the variance of the difference between two halves of them, the unseen gain is multiplied
  by g² / (g² + s²), which is what is left of it if the true gain were drawn around zero.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

LEAST_ERROR = 1e-3
"""A few dozen crops cannot show a smaller error; keeps the inverse finite."""

LEAST_NOISE = 0.02
"""Standard deviation of a point measured on many crops: the effect of the order of the crops alone."""

COARSE, FINE = 7, 4
"""Grid points for Optimus' b2: over its whole range, and then on either side of the best of these."""

SHAPES = (1 / 3, 1 / 2, 3 / 4, 1.0)
"""Exponents c of the mixture."""

FLOORS = {0.0: 1.0, 0.25: 0.5, 0.5: 0.25}
"""Floors b2 of the mixture, as parts of the least error seen, and the prior of each."""

REWEIGHTED = 2
"""Number of repetitions of a fit with the derivatives that it found."""

GAIN_PER_DOUBLING = 0.5
"""Gain that each doubling of the work may add beyond the last point, as a part of the gain seen."""

DIP = 0.05
"""If the accuracy falls by more than this from the first point to the second, training began by losing
ground (a new head, a new class) and the first point is not on the curve."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One possible continuation of the points: error(x) = (b0 · x + b1)^-c + b2.

    Attributes:
        weight: its probability; those of a curve sum to 1.
    """

    b0: float
    b1: float
    b2: float
    c: float = 1.0
    weight: float = 1.0

    def accuracy_at(self, x: float) -> float:
        """Returns 1 − error; below 0 where the curve says so."""
        inverse = self.b0 * max(0.0, x) + self.b1
        return 1.0 - self.b2 - inverse**-self.c if inverse > 0.0 else 0.0


@dataclass(frozen=True, slots=True)
class LearningCurve:
    """Accuracy over work; non-decreasing.

    Attributes:
        shapes: possible continuations, for x in crops seen.
        last_x: work at the last measured point.
        reliability: part of the gain beyond ``last_x`` that is believed, in [0, 1].
        doubling_gain: the most that a doubling of the work adds beyond ``last_x``; infinite for no limit.
    """

    shapes: tuple[Shape, ...]
    last_x: float
    reliability: float = 1.0
    doubling_gain: float = math.inf

    def accuracy_at(self, x: float) -> float:
        """Returns the validation accuracy after ``x`` crops seen, in [0, 1]."""
        return sum(shape.weight * accuracy for shape, accuracy in self._each(x))

    def _each(self, x: float) -> list[tuple[Shape, float]]:
        return [(shape, _clip(self._of(shape, x))) for shape in self.shapes]

    def _of(self, shape: Shape, x: float) -> float:
        if x <= self.last_x:
            return shape.accuracy_at(x)
        last = shape.accuracy_at(self.last_x)
        if self.last_x <= 0.0:
            return last
        beyond = self.reliability * (shape.accuracy_at(x) - last)
        return last + min(beyond, self.doubling_gain * math.log2(x / self.last_x))


def fit_mixture(
    xs: Sequence[float],
    accuracies: Sequence[float],
    *,
    validation_crops: int | None = None,
) -> LearningCurve:
    """Returns the average of several shapes, within limits; flat for one point, or points that fall.

    Args:
        xs: crops seen at each point, rising, the first usually 0.
        accuracies: validation accuracy in [0, 1] at each point.
        validation_crops: crops behind each accuracy; None trusts the points.

    Raises:
        ValueError: no points, lengths that differ, xs that do not rise, or values out of range.
    """
    _check(xs, accuracies)
    x = np.asarray(xs, dtype=np.float64)
    y = np.asarray(accuracies, dtype=np.float64)
    if len(x) >= 3 and y[1] < y[0] - DIP:
        x, y = x[1:], y[1:]
    points = _Points.of(x, y)
    noise = _noise(y, validation_crops)
    shapes = _mixed(points, noise)
    last_x = float(x[-1])
    # The same crops measure every point: more points do not make up for few crops.
    curve = LearningCurve(shapes, last_x)
    seen = max(0.0, curve.accuracy_at(last_x) - max(curve.accuracy_at(float(x[0])), float(y[0])))
    reliability = _reliability(seen, y, validation_crops)
    return LearningCurve(shapes, last_x, reliability, GAIN_PER_DOUBLING * seen)


def fit_optimus(
    xs: Sequence[float],
    accuracies: Sequence[float],
    *,
    validation_crops: int | None = None,
) -> LearningCurve:
    """Returns the paper's plain version: the one inverse curve that meets any points best.

    Takes the same as ``fit_mixture``; noise is ignored.
    """
    del validation_crops
    _check(xs, accuracies)
    points = _Points.of(np.asarray(xs, dtype=np.float64), np.asarray(accuracies, dtype=np.float64))
    # Below the least error, at which the inverse would be infinite.
    largest = 0.98 * float(points.error.min())
    spacing = largest / (COARSE - 1)
    coarse = [_solve(points, 1.0, float(b2)) for b2 in np.linspace(largest, 0.0, COARSE)]
    near = _best(coarse).b2 + spacing * np.linspace(1.0, -1.0, 2 * FINE + 1)
    fine = [_solve(points, 1.0, float(b2)) for b2 in near if 0.0 <= b2 <= largest]
    return LearningCurve((_best([*coarse, *fine]),), float(xs[-1]))


CurveFit = Callable[..., LearningCurve]
"""Signature of ``fit_mixture``."""

CURVE_FITS: Mapping[str, CurveFit] = {"mixture": fit_mixture, "optimus": fit_optimus}
"""Ways to continue a curve, by name."""


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


def _mixed(points: _Points, noise: float) -> tuple[Shape, ...]:
    least = float(points.error.min())
    solutions = [(_solve(points, c, part * least), prior) for c in SHAPES for part, prior in FLOORS.items()]
    lowest = min(cost for (_, cost), _ in solutions)
    # Relative to the best cost: otherwise all of them might be 0. Where no shape goes through the points, all
    # are flat, and none is better than another.
    beliefs = [
        prior if math.isinf(lowest) else prior * math.exp(-(cost - lowest) / (2.0 * noise**2))
        for (_, cost), prior in solutions
    ]
    total = sum(beliefs)
    return tuple(
        replace(shape, weight=belief / total)
        for ((shape, _), _), belief in zip(solutions, beliefs, strict=True)
        if belief > 0.0
    )


def _solve(points: _Points, c: float, b2: float) -> tuple[Shape, float]:
    """Returns the shape with this exponent and floor that fits best, and its weighted squared error."""
    part = points.error - b2
    target = part ** (-1.0 / c)
    inverse = target
    b = np.zeros(2)
    for _ in range(1 + REWEIGHTED if c < 1.0 else 1):
        rows = points.weights * c * inverse ** (-c - 1.0)
        b, _ = nnls(points.design * rows[:, None], rows * target)
        inverse = points.design @ b
        # No curve through these points: a negative power of 0 has no value.
        if inverse.min() <= 0.0:
            return Shape(0.0, float(target[-1]), b2, c), math.inf
    residual = points.weights * (inverse**-c - part)
    return Shape(float(b[0]) / points.scale, float(b[1]), b2, c), float(residual @ residual)


def _best(solutions: Sequence[tuple[Shape, float]]) -> Shape:
    """Returns the shape of least cost; of equal costs (up to rounding) that with the largest b2.

    The largest b2 promises least.
    """
    least = min(cost for _, cost in solutions)
    return max((shape for shape, cost in solutions if cost <= least + 1e-12), key=lambda shape: shape.b2)


def _noise(y: NDArray[np.float64], validation_crops: int | None) -> float:
    """Returns the standard deviation of one point."""
    if validation_crops is None:
        return LEAST_NOISE
    # An accuracy of exactly 0 or 1 on few crops is not free of noise: one crop's worth is kept.
    mean = float(np.clip(y.mean(), 1 / (validation_crops + 2), 1 - 1 / (validation_crops + 2)))
    return math.hypot(LEAST_NOISE, math.sqrt(mean * (1.0 - mean) / max(1, validation_crops)))


def _reliability(seen: float, y: NDArray[np.float64], validation_crops: int | None) -> float:
    if validation_crops is None:
        return 1.0
    if seen <= 0.0:
        return 0.0
    halves = max(1.0, len(y) / 2)
    return seen**2 / (seen**2 + 2.0 * _noise(y, validation_crops) ** 2 / halves)


def _check(xs: Sequence[float], accuracies: Sequence[float]) -> None:
    if not xs or len(xs) != len(accuracies):
        raise ValueError("a curve needs as many accuracies as points, and at least one")
    if xs[0] < 0 or any(b <= a for a, b in pairwise(xs)):
        raise ValueError("the work at the points of a curve must rise from 0 or more")
    if not all(0.0 <= accuracy <= 1.0 for accuracy in accuracies):
        raise ValueError("accuracies lie between 0 and 1")


def _clip(accuracy: float) -> float:
    return min(1.0, max(0.0, accuracy))
