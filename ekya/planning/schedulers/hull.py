"""Upper concave hulls of job values over shares, along which quanta are given out greedily.

With several jobs that compete for quanta, giving each next quantum to the job that gains most per quantum is
best where all gains are concave. Values with steps (a λ that fits or does not) are not; their hull is, and
only the one step at which the capacity runs out needs separate treatment.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

FLAT = 1e-12
"""A rise per quantum below this counts as none."""


@dataclass(frozen=True, slots=True, eq=False)
class Hulls:
    """Concave hulls, cut into segments that get flatter; segments that a hull does not need are empty.

    Attributes:
        floor: (hulls,) the share in quanta at which each hull begins.
        size: (hulls, segments) length in quanta.
        rise: (hulls, segments) value per quantum.
    """

    floor: Ints
    size: Ints
    rise: Floats


def concave_hulls(values: Floats, floor: Ints) -> Hulls:
    """Returns hulls of ``values`` (hulls, shares) from ``floor`` (hulls,) to their maximum.

    Values need not rise.
    """
    count, shares = values.shape
    every, share = np.arange(count), np.arange(shares)
    at = floor.copy()
    sizes: list[Ints] = []
    rises: list[Floats] = []
    while True:
        ahead = share - at[:, None]
        rise = np.where(ahead > 0, (values - values[every, at][:, None]) / np.maximum(ahead, 1), 0.0)
        steepest = rise.max(axis=1)
        goes_on = steepest > FLAT
        if not goes_on.any() and sizes:
            break
        # Of collinear points the farthest, so that segments are few.
        on_line = rise >= (steepest * (1.0 - 1e-12))[:, None]
        to = np.where(goes_on, shares - 1 - np.argmax(on_line[:, ::-1], axis=1), at)
        sizes.append(to - at)
        rises.append(np.where(goes_on, steepest, 0.0))
        at = to
    return Hulls(floor, np.stack(sizes, axis=1), np.stack(rises, axis=1))
