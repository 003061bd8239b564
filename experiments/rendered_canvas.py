"""A picture on which objects are drawn, with the object that is in front at each pixel."""

from dataclasses import dataclass, field
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

Box = tuple[float, float, float, float]


class Matte(NamedTuple):
    """A drawn body without background.

    Attributes:
        colour: (h, w, 3) float32 BGR, multiplied by ``alpha``.
        alpha: (h, w) float32 in [0, 1].
    """

    colour: NDArray[np.float32]
    alpha: NDArray[np.float32]


@dataclass(slots=True, eq=False)
class Canvas:
    """A picture and what was drawn on it.

    Attributes:
        picture: (H, W, 3) uint8 BGR.
        owner: (H, W) int16, number of the object in front, -1 where there is none.
        kinds, extents, areas: class, box and size in pixels of each object; both may reach over the edge.
    """

    picture: NDArray[np.uint8]
    owner: NDArray[np.int16]
    kinds: list[int] = field(default_factory=list)
    extents: list[Box] = field(default_factory=list)
    areas: list[float] = field(default_factory=list)

    @staticmethod
    def over(picture: NDArray[np.uint8]) -> "Canvas":
        """Returns a canvas with this background and no objects."""
        return Canvas(picture, np.full(picture.shape[:2], -1, np.int16))

    def take(self, kind: int, box: Box) -> None:
        """Notes an object that was drawn and fills its box."""
        x0, y0, x1, y1 = (max(0, round(edge)) for edge in box)
        self.owner[y0:y1, x0:x1] = len(self.kinds)
        self.note(kind, box, (box[2] - box[0]) * (box[3] - box[1]))

    def note(self, kind: int, box: Box, area: float) -> None:
        """Notes an object whose pixels in ``owner`` are already its own."""
        self.kinds.append(kind)
        self.extents.append(box)
        self.areas.append(area)

    def paste(self, matte: Matte, placing: NDArray[np.float64]) -> tuple[Box, float]:
        """Draws a matte as a part of the next object to be noted.

        Args:
            matte: to draw.
            placing: (2, 3), maps its pixels to those of the canvas.

        Returns:
            Its box, which may reach over the edge, and the number of pixels of its shape.
        """
        height, width = matte.alpha.shape
        x, y, wide, high = cv2.boundingRect((matte.alpha > 0.5).astype(np.uint8))
        box = _around(placing, x, y, x + wide, y + high)
        area = float(matte.alpha.sum() * abs(np.linalg.det(placing[:, :2])))
        x0, y0, x1, y1 = _around(placing, 0, 0, width, height)
        left, top = max(0, int(x0)), max(0, int(y0))
        right, bottom = min(self.picture.shape[1], int(x1) + 1), min(self.picture.shape[0], int(y1) + 1)
        if left >= right or top >= bottom:
            return box, area
        shifted = placing - np.array([[0, 0, left], [0, 0, top]])
        size = (right - left, bottom - top)
        colour = cv2.warpAffine(matte.colour, shifted, size)
        alpha = cv2.warpAffine(matte.alpha, shifted, size)
        part = self.picture[top:bottom, left:right]
        rest = cv2.multiply(part, cv2.merge([1.0 - alpha] * 3), dtype=cv2.CV_32F)
        cv2.add(rest, colour, part, dtype=cv2.CV_8U)
        self.owner[top:bottom, left:right][alpha > 0.5] = len(self.kinds)
        return box, area

    def cut(self, box: Box, side: int) -> "Canvas":
        """Returns a part of the picture, resized to (side, side)."""
        x0, y0, x1, y1 = box
        across, down = side / (x1 - x0), side / (y1 - y0)
        placing = np.array([[across, 0, -x0 * across], [0, down, -y0 * down]])
        way = cv2.INTER_AREA if across < 1 and down < 1 else cv2.INTER_LINEAR
        columns, rows = slice(round(x0), round(x1)), slice(round(y0), round(y1))
        picture = cv2.resize(self.picture[rows, columns], (side, side), interpolation=way)
        owner = cv2.warpAffine(self.owner, placing, (side, side), flags=cv2.INTER_NEAREST)
        extents = [_around(placing, *extent) for extent in self.extents]
        return Canvas(
            picture, owner, list(self.kinds), extents, [across * down * area for area in self.areas]
        )

    def classes(self) -> NDArray[np.int64]:
        """Returns the (N,) classes of the objects."""
        return np.array(self.kinds, np.int64)

    def boxes(self) -> NDArray[np.float32]:
        """Returns the (N, 4) boxes of the objects inside the picture, in pixels."""
        height, width = self.owner.shape
        edges = np.array([width, height, width, height])
        return np.clip(np.array(self.extents).reshape(-1, 4), 0, edges).astype(np.float32)

    def visible(self) -> NDArray[np.float64]:
        """Returns the (N,) part of each object that is inside the picture and in front."""
        shown = np.bincount(self.owner[self.owner >= 0], minlength=len(self.kinds))
        return shown / np.maximum(np.array(self.areas), 1.0)


def _around(placing: NDArray[np.float64], x0: float, y0: float, x1: float, y1: float) -> Box:
    """Returns the box around a placed box."""
    corners = np.array([[x0, x1, x0, x1], [y0, y0, y1, y1], [1, 1, 1, 1]])
    placed = placing @ corners
    (left, top), (right, bottom) = placed.min(axis=1).tolist(), placed.max(axis=1).tolist()
    return left, top, right, bottom
