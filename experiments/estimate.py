"""Means over seeds, with their intervals."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from scipy.stats import t as student_t


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over seeds.

    Attributes:
        mean: of the values.
        low, high: 95% interval by Student's t; None for a single seed.
    """

    mean: float
    low: float | None
    high: float | None

    @staticmethod
    def over_seeds(values: Sequence[float]) -> "Estimate":
        """Returns the estimate from one value for each seed."""
        mean = fmean(values)
        if len(values) < 2:
            return Estimate(mean, None, None)
        error = float(np.std(values, ddof=1)) / len(values) ** 0.5
        half = float(student_t.ppf(0.975, len(values) - 1)) * error
        return Estimate(mean, mean - half, mean + half)

    def in_points(self) -> str:
        """Formats it in points, with its interval."""
        if self.low is None or self.high is None:
            return f"{100 * self.mean:+.1f}"
        return f"{100 * self.mean:+.1f} ({100 * self.low:+.1f} to {100 * self.high:+.1f})"
