"""Parts of a camera's picture whose objects count: outside of its masks, and inside a zone if it has any.

An object is where it stands: the middle of the lower edge of its box decides, for masks and zones alike. So a
zone is drawn on the ground, and a car that hides a part of a masked pavement still counts.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Polygon = tuple[tuple[float, ...], ...]
"""At least three points, each x and y as parts of the picture's width and height, in [0, 1]."""

_INSIDE = 1e-6  # What stands on the picture's edge is inside a polygon that reaches there.
_GRID = 100


@dataclass(frozen=True, slots=True)
class Areas:
    """Masks and zones of a camera.

    Attributes:
        mask: objects in any of these do not count.
        zone: if there are any, objects outside of all of these do not count.
    """

    mask: tuple[Polygon, ...] = ()
    zone: tuple[Polygon, ...] = ()

    def find_counting(
        self, boxes: NDArray[np.float32], size: tuple[float, float] = (1.0, 1.0)
    ) -> NDArray[np.bool_]:
        """Returns (N,) bool, which of the boxes count.

        Args:
            boxes: (N, 4) x0 y0 x1 y1.
            size: width and height of the picture in the unit of the boxes.
        """
        counts: NDArray[np.bool_] = np.ones(len(boxes), np.bool_)
        if not len(boxes) or self == WHOLE_PICTURE:
            return counts
        feet = np.stack([(boxes[:, 0] + boxes[:, 2]) / 2, boxes[:, 3]], axis=1) / np.array(size, np.float64)
        feet = np.clip(feet, _INSIDE, 1.0 - _INSIDE)
        if self.zone:
            counts = np.any([_is_inside(feet, one) for one in self.zone], axis=0)
        for one in self.mask:
            counts &= ~_is_inside(feet, one)
        return counts

    def require_some_part(self) -> None:
        """Checks that objects can count somewhere.

        Raises:
            ValueError: nothing of the picture is left, to a hundredth of its width and height.
        """
        middles = (np.arange(_GRID) + 0.5) / _GRID
        x, y = (each.ravel() for each in np.meshgrid(middles, middles))
        if not self.find_counting(np.stack([x, y, x, y], axis=1).astype(np.float32)).any():
            raise ValueError(
                "nowhere in the picture would an object count; leave a part of it unmasked and in a zone"
            )


WHOLE_PICTURE = Areas()
"""Every object counts."""


def _is_inside(points: NDArray[np.float64], polygon: Polygon) -> NDArray[np.bool_]:
    """Returns (N,) bool, which of (N, 2) points lie in a polygon, by the even-odd rule."""
    begin = np.array(polygon)
    end = np.roll(begin, -1, axis=0)
    x, y = points[:, :1], points[:, 1:]
    crosses = (begin[:, 1] > y) != (end[:, 1] > y)
    rise = np.where(begin[:, 1] == end[:, 1], 1.0, end[:, 1] - begin[:, 1])
    left = x < begin[:, 0] + (y - begin[:, 1]) / rise * (end[:, 0] - begin[:, 0])
    inside: NDArray[np.bool_] = (crosses & left).sum(axis=1) % 2 == 1
    return inside
