"""Draws boxes, masks and zones into a picture, and encodes it for a page."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import cv2
import numpy as np
from numpy.typing import NDArray

from ekya.core.areas import WHOLE_PICTURE, Areas, Polygon
from ekya.results.report.themes import DARK

WIDTH = 480
"""Width in pixels of a picture on a page."""

MOST_BYTES = 60_000
"""Size of an encoded picture; of one with very much detail, the size at ``_QUALITIES[-1]``."""

_QUALITIES = (85, 75, 65, 50, 35)
_DASH, _GAP = 5, 4
_MASKED_LIGHT = 0.4
_FONT, _FONT_SCALE = cv2.FONT_HERSHEY_SIMPLEX, 0.36


@dataclass(frozen=True, slots=True)
class _Line:
    """A line: its colour as ``#rrggbb``, its width in pixels, and whether it is dashed."""

    color: str
    width: int = 2
    dashed: bool = False


class BoxStyle(Enum):
    """Kind of a box. The colours of the dark page are bright enough for pictures."""

    OBJECT = _Line(DARK.streams[0])
    """An object of the reference."""
    DOUBTFUL = _Line(DARK.ink, 1, dashed=True)
    """A box that the reference is in doubt about."""
    RIGHT = _Line(DARK.streams[2])
    """A detected box that matches an object."""
    WRONG = _Line(DARK.streams[4])
    """A detected box that matches none."""
    MISSED = _Line(DARK.streams[0], dashed=True)
    """An object that no box matches."""


@dataclass(frozen=True, slots=True, eq=False)
class DrawnBox:
    """A box in a picture.

    Attributes:
        box: (4,) x0 y0 x1 y1 in pixels of the frame.
        style: what it is.
        label: text at its upper edge; empty for none.
    """

    box: NDArray[np.float32]
    style: BoxStyle
    label: str = ""


def draw_boxes(image: NDArray[np.uint8], boxes: Sequence[DrawnBox], areas: Areas = WHOLE_PICTURE) -> bytes:
    """Returns a JPEG of ``WIDTH`` with the boxes, later ones on top.

    Args:
        image: (H, W, 3) uint8 BGR, which is not changed.
        boxes: in its pixels.
        areas: where objects count: masks are darkened, zones outlined.
    """
    height, width = image.shape[:2]
    scale = WIDTH / width
    size = (WIDTH, max(1, round(height * scale)))
    # Area for shrinking, where the other one aliases.
    way = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
    canvas = np.ascontiguousarray(cv2.resize(image, size, interpolation=way), np.uint8)
    _draw_areas(canvas, areas)
    for one in boxes:
        x0, y0, x1, y1 = np.rint(one.box.astype(np.float64) * scale).astype(int).tolist()
        _draw_box(canvas, (x0, y0), (x1, y1), one.style.value)
    # After all boxes, so that none is drawn over a label.
    for one in boxes:
        if one.label:
            _draw_label(canvas, one, scale)
    return _encoded(canvas)


def _draw_areas(canvas: NDArray[np.uint8], areas: Areas) -> None:
    masked = np.zeros(canvas.shape[:2], np.uint8)
    for one in areas.mask:
        # One by one: where two overlap is masked as well.
        cv2.fillPoly(masked, [_corners(canvas, one)], 1)
    canvas[masked > 0] = (canvas[masked > 0] * _MASKED_LIGHT).astype(np.uint8)
    for line, polygons in ((DARK.quiet, areas.mask), (DARK.streams[3], areas.zone)):
        cv2.polylines(canvas, [_corners(canvas, one) for one in polygons], True, _bgr(line), 1, cv2.LINE_AA)


def _corners(canvas: NDArray[np.uint8], polygon: Polygon) -> NDArray[np.int32]:
    """Returns the corners of a polygon in pixels, on the outermost ones where it reaches to the edge."""
    last = np.array([canvas.shape[1] - 1, canvas.shape[0] - 1])
    return np.asarray(np.rint(np.array(polygon) * last), np.int32)


def _draw_box(canvas: NDArray[np.uint8], low: tuple[int, int], high: tuple[int, int], line: _Line) -> None:
    if not line.dashed:
        # A dark rim, so that the line shows on bright ground too.
        cv2.rectangle(canvas, low, high, _bgr(DARK.page), line.width + 2)
        cv2.rectangle(canvas, low, high, _bgr(line.color), line.width)
        return
    corners = [low, (high[0], low[1]), high, (low[0], high[1])]
    for begin, end in zip(corners, [*corners[1:], corners[0]], strict=True):
        for start, stop in _dashes(begin, end):
            cv2.line(canvas, start, stop, _bgr(line.color), line.width)


def _dashes(begin: tuple[int, int], end: tuple[int, int]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Returns the dashes of a horizontal or vertical line."""
    length = max(abs(end[0] - begin[0]), abs(end[1] - begin[1]))

    def at(place: int) -> tuple[int, int]:
        part = min(place, length) / length
        return (
            round(begin[0] + part * (end[0] - begin[0])),
            round(begin[1] + part * (end[1] - begin[1])),
        )

    return [(at(place), at(place + _DASH)) for place in range(0, length, _DASH + _GAP)]


def _draw_label(canvas: NDArray[np.uint8], one: DrawnBox, scale: float) -> None:
    """Writes a label above its box, or inside where there is no room above, within the picture."""
    (width, height), below = cv2.getTextSize(one.label, _FONT, _FONT_SCALE, 1)
    x = int(np.clip(round(float(one.box[0]) * scale) - 1, 0, max(0, canvas.shape[1] - width - 4)))
    top = round(float(one.box[1]) * scale) - height - below - 3
    y = int(np.clip(top if top >= 0 else top + height + below + 3, 0, canvas.shape[0] - height - below - 2))
    cv2.rectangle(canvas, (x, y), (x + width + 4, y + height + below + 2), _bgr(one.style.value.color), -1)
    cv2.putText(
        canvas, one.label, (x + 2, y + height + 2), _FONT, _FONT_SCALE, _bgr(DARK.page), 1, cv2.LINE_AA
    )


def _encoded(canvas: NDArray[np.uint8]) -> bytes:
    jpeg = b""
    for quality in _QUALITIES:
        _, encoded = cv2.imencode(".jpg", canvas, [cv2.IMWRITE_JPEG_QUALITY, quality])
        jpeg = encoded.tobytes()
        if len(jpeg) <= MOST_BYTES:
            break
    return jpeg


def _bgr(color: str) -> tuple[int, int, int]:
    red, green, blue = bytes.fromhex(color[1:])
    return blue, green, red
