"""Decodes JPEGs and scales pictures down to a maximum side."""

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

# A larger size is a damaged header: no camera of a data set takes such pictures.
_MOST_PIXELS = 64_000_000

_REDUCED = {8: cv2.IMREAD_REDUCED_COLOR_8, 4: cv2.IMREAD_REDUCED_COLOR_4, 2: cv2.IMREAD_REDUCED_COLOR_2}

_START, _END, _SCAN = 0xD8, 0xD9, 0xDA
# Frame headers are C0 to CF, except C4, C8 and CC, which are other segments.
_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_ALONE = frozenset({0x01, *range(0xD0, 0xD8), _START, _END})


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """A picture and its scale relative to the stored one.

    Attributes:
        image: (H, W, 3) uint8, BGR.
        scale: (4,) factors x, y, x, y that map boxes from stored pixels to ``image``.
    """

    image: NDArray[np.uint8]
    scale: NDArray[np.float64]


def shrink(image: NDArray[np.uint8], max_side: int) -> NDArray[np.uint8]:
    """Scales a picture down, in proportion, to a maximum side; returns a smaller picture unchanged.

    Args:
        image: (H, W, 3) uint8.
        max_side: longest side of the result, pixels.
    """
    return _resized(image, _size_within(image.shape[1], image.shape[0], max_side))


def decode_jpeg(data: bytes, max_side: int) -> Picture | None:
    """Decodes a JPEG so that no side is longer than ``max_side`` pixels; returns None if it does not decode.

    The decoder itself scales by 2, 4 or 8 where possible: half the size takes less than half the time.
    """
    size = jpeg_size(data)
    if size is None or size[0] * size[1] > _MOST_PIXELS:
        return None
    width, height = size
    fits = (by for by in _REDUCED if max(width, height) >= by * max_side)
    flag = _REDUCED.get(next(fits, 1), cv2.IMREAD_COLOR)
    try:
        # Boxes were drawn on the stored pixels, so the EXIF orientation must not be applied.
        decoded = cv2.imdecode(np.frombuffer(data, np.uint8), flag | cv2.IMREAD_IGNORE_ORIENTATION)
    except cv2.error:
        return None
    if decoded is None or decoded.ndim != 3:
        return None
    image = _resized(np.asarray(decoded, dtype=np.uint8), _size_within(width, height, max_side))
    across, down = image.shape[1] / width, image.shape[0] / height
    return Picture(image, np.array([across, down, across, down]))


def jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Returns width and height in pixels from a JPEG's header, or None if it has none."""
    if data[:2] != bytes((0xFF, _START)):
        return None
    at = 2
    while at + 4 <= len(data):
        if data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1
        elif marker in _ALONE:
            at += 2
        elif marker in _SIZES:
            height = int.from_bytes(data[at + 5 : at + 7], "big")
            width = int.from_bytes(data[at + 7 : at + 9], "big")
            return (width, height) if width and height else None
        elif marker == _SCAN:
            return None
        else:
            at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return None


def _size_within(width: int, height: int, max_side: int) -> tuple[int, int]:
    scale = min(1.0, max_side / max(width, height))
    return max(1, round(width * scale)), max(1, round(height * scale))


def _resized(image: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    height, width = image.shape[:2]
    if (width, height) == size:
        return image
    # Down to one half, linear interpolation uses every pixel and takes a third of the time of area averaging.
    how = cv2.INTER_LINEAR if 2 * max(size) >= max(width, height) else cv2.INTER_AREA
    return np.asarray(cv2.resize(image, size, interpolation=how), dtype=np.uint8)
