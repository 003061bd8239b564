"""Describes a picture by the colours of a coarse grid."""

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

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


def describe_pictures_in_brief(described: Sequence[NDArray[np.float32]]) -> tuple[int, ...]:
    """Returns a short description of what most of some pictures show; empty without any.

    Args:
        described: as ``describe_picture`` describes them.

    Returns:
        48 grey levels: the same values as theirs for two by two cells, and their medians over the pictures.
    """
    if not described:
        return ()
    rows, columns = CELLS
    cells = np.median(described, axis=0).reshape(rows // 2, 2, columns // 2, 2, 4)
    return tuple(np.rint(cells.mean(axis=(1, 3))).astype(int).reshape(-1).tolist())
