"""Makes of a frame what is analysed: crops of objects, a square for a detector, the colours of a grid."""

import cv2
import numpy as np
from numpy.typing import NDArray

CONTEXT = 0.1
"""Part by which a crop is wider than its object: the street around it tells a car from a van's side."""


def crop_objects(image: NDArray[np.uint8], boxes: NDArray[np.float32], side: int) -> NDArray[np.uint8]:
    """Cuts a square around each box, with a margin of ``CONTEXT``, and resizes it.

    The square has the centre and the longer side of the box, so shapes keep their proportions. Border pixels
    are repeated where the square leaves the image. Boxes outside the image are moved to its edge, and a box
    without area gives a square of one pixel.

    Args:
        image: (H, W, 3) uint8, BGR.
        boxes: (N, 4) float32, x0 y0 x1 y1 in pixels.
        side: width and height of a crop in pixels, at least 1.

    Returns:
        (N, side, side, 3) uint8, RGB; (0, side, side, 3) without boxes.
    """
    height, width = image.shape[:2]
    crops = np.empty((len(boxes), side, side, 3), np.uint8)
    for row, box in enumerate(boxes.astype(np.float64)):
        x0, x1 = np.clip(box[[0, 2]], 0.0, width)
        y0, y1 = np.clip(box[[1, 3]], 0.0, height)
        length = max(1, round(max(x1 - x0, y1 - y0) * (1.0 + CONTEXT)))
        left = round((x0 + x1 - length) / 2.0)
        top = round((y0 + y1 - length) / 2.0)
        square = _square(image, left, top, length)
        # Area averaging keeps thin structures (spokes, legs) when a crop shrinks.
        how = cv2.INTER_AREA if length > side else cv2.INTER_LINEAR
        resized = cv2.resize(square, (side, side), interpolation=how)
        cv2.cvtColor(resized, cv2.COLOR_BGR2RGB, dst=crops[row])
    return crops


def square_frame(image: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """Resizes a frame to a square, without regard to its proportions.

    Args:
        image: (H, W, 3) uint8, BGR.
        side: of the square in pixels.

    Returns:
        (1, side, side, 3) uint8, RGB.
    """
    resized = cv2.resize(image, (side, side), interpolation=cv2.INTER_LINEAR)
    return cv2.cvtColor(resized, cv2.COLOR_BGR2RGB)[None].astype(np.uint8, copy=False)


def _square(image: NDArray[np.uint8], left: int, top: int, length: int) -> NDArray[np.uint8]:
    height, width = image.shape[:2]
    if left >= 0 and top >= 0 and left + length <= width and top + length <= height:
        return image[top : top + length, left : left + length]
    columns = np.clip(np.arange(left, left + length), 0, width - 1)
    rows = np.clip(np.arange(top, top + length), 0, height - 1)
    return image[rows[:, None], columns[None, :]]


CELLS = (6, 8)
"""Rows and columns of the grid."""

_CELL = 8
_SAMPLED = 320


def describe_picture(image: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Returns the mean colour and the spread of brightness in each cell of a grid.

    A picture shrinks to 8 x 8 pixels a cell first. One of 640 pixels or more is sampled before that, so that
    a large picture takes little longer than a small one.

    Args:
        image: (H, W, 3) uint8, BGR.

    Returns:
        (192,) float32 in grey levels: three means and a standard deviation of each cell.
    """
    step = max(1, max(image.shape[:2]) // _SAMPLED)
    rows, columns = CELLS
    size = (columns * _CELL, rows * _CELL)
    small = cv2.resize(image[::step, ::step], size, interpolation=cv2.INTER_AREA).astype(np.float32)
    cells = small.reshape(rows, _CELL, columns, _CELL, 3)
    spread = cells.mean(axis=4).std(axis=(1, 3))
    described = np.concatenate([cells.mean(axis=(1, 3)), spread[..., None]], axis=2)
    return described.reshape(-1).astype(np.float32, copy=False)
