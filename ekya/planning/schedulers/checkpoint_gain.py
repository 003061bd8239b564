"""Accuracy during a retraining whose checkpoints serve (paper §5).

With the part p of its work done, a γ whose checkpoints serve has brought the part

    f(p) = (1 − e^(−b·p)) / (1 − e^(−b))        from f(0) = 0 to f(1) = 1

of its gain. Learning curves have this shape, and so does the rest of one: a retraining in progress is again
such a γ, with the rest of the gain, the rest of the work and a bend b that is smaller in proportion. So
planning a window again counts nothing twice and loses nothing. The mean of f is
``RetrainOption.early_part``, which determines b. Where that is 0, nothing serves before the end.
"""

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LEAST_EARLY, MOST_EARLY = 0.002, 0.998
"""Range into which an early part other than 0 is clipped."""

_STRAIGHT = 1e-9
"""Smaller bends are replaced by this one: a straight line."""

_NEARLY_STRAIGHT = 1e-5
"""Below this bend a straight line is more exact than a difference of two large numbers."""

_NEWTON_STEPS = 4


def bends_of(early_parts: Floats) -> Floats:
    """Returns b for each mean of f; 0 for an early part of 0, which has no curve.

    The mean is (1 + L(b / 2)) / 2 with L(x) = coth x − 1 / x, the Langevin function. Its inverse starts from
    Cohen's rational approximation, which is off by 5% at most, and is refined by Newton's method.
    """
    y = 2.0 * np.clip(early_parts, LEAST_EARLY, MOST_EARLY) - 1.0
    x = y * (3.0 - y * y) / (1.0 - y * y)
    for _ in range(_NEWTON_STEPS):
        # Near 0 two large numbers cancel; the series is more exact there.
        small = np.abs(x) < 0.02
        z = np.where(small, 1.0, x)
        value = np.where(small, x / 3.0 - x**3 / 45.0, 1.0 / np.tanh(z) - 1.0 / z)
        slope = np.where(small, 1.0 / 3.0 - x * x / 15.0, 1.0 / (z * z) - 1.0 / np.sinh(z) ** 2)
        x = x - (value - y) / slope
    bends: Floats = np.where(early_parts > 0.0, np.where(np.abs(x) < _STRAIGHT, _STRAIGHT, 2.0 * x), 0.0)
    return bends


def bend_of(early_part: float) -> float:
    """Returns ``bends_of`` for one value."""
    if early_part <= 0.0:
        return 0.0
    y = 2.0 * min(max(early_part, LEAST_EARLY), MOST_EARLY) - 1.0
    x = y * (3.0 - y * y) / (1.0 - y * y)
    for _ in range(_NEWTON_STEPS):
        if abs(x) < 0.02:
            value, slope = x / 3.0 - x**3 / 45.0, 1.0 / 3.0 - x * x / 15.0
        else:
            value, slope = 1.0 / math.tanh(x) - 1.0 / x, 1.0 / (x * x) - 1.0 / math.sinh(x) ** 2
        x -= (value - y) / slope
    return 2.0 * x if abs(x) >= _STRAIGHT else _STRAIGHT


def mean_parts(bend: Floats, start: Floats, end: Floats) -> Floats:
    """Returns the mean of f over work from ``start`` to ``end``, as parts of all work.

    Where these are equal it is f itself. ``bend`` is not 0.
    """
    h = bend * (end - start)
    # Near 0 the difference loses its digits; the series does not.
    small = np.abs(h) < 1e-3
    z = np.where(small, 1.0, h)
    beyond = np.where(small, h * (0.5 - h * (1.0 / 6.0 - h / 24.0)), 1.0 + np.expm1(-z) / z)
    begun = np.expm1(-bend * start)
    means: Floats = (begun - (1.0 + begun) * beyond) / np.expm1(-bend)
    return means


def mean_part(bend: float, start: float, end: float) -> float:
    """Returns ``mean_parts`` for one value."""
    h = bend * (end - start)
    beyond = h / 2.0 - h * h / 6.0 + h**3 / 24.0 if abs(h) < 1e-3 else (h + math.expm1(-h)) / h
    begun = math.expm1(-bend * start)
    return (-begun + (1.0 + begun) * beyond) / -math.expm1(-bend)


def part_in_steps(bend: float, steps: int) -> float:
    """Returns the mean of f if it takes effect only at the end of each of ``steps`` equal parts of work."""
    if abs(bend) < _NEARLY_STRAIGHT:
        return (1.0 - 1.0 / steps) / 2.0
    return -1.0 / math.expm1(-bend) + 1.0 / (steps * math.expm1(-bend / steps))


def early_part_left(early_part: float, left: float) -> float:
    """Returns the early part of the rest of a γ, when the part ``left`` of its work remains."""
    if early_part <= 0.0:
        return 0.0
    rest = bend_of(early_part) * left
    return mean_part(rest if abs(rest) >= _STRAIGHT else _STRAIGHT, 0.0, 1.0)
