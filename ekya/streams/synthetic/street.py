"""Background picture of the street, and the lanes along which actors move."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from ekya.streams.synthetic.scene import Colour, View, shade

BASE_WIDTH, BASE_HEIGHT = 320, 240
"""Size of the base picture, in whose pixels lanes and bodies are measured; other sizes are scaled."""

_HORIZON = 78.0
_NEAR = 236.0


class Lane(NamedTuple):
    """A straight path through the picture of an object's bottom middle.

    Attributes:
        x0, y0, x1, y1: start and end, in pixels of the base picture.
        scale0, scale1: size at start and end; perspective makes them differ.
        pavement: True for people, False for vehicles.
        mirrored: True if objects on it face to the left.
        approaching: True if objects on it move towards the camera.
    """

    x0: float
    y0: float
    x1: float
    y1: float
    scale0: float
    scale1: float
    pavement: bool
    mirrored: bool = False
    approaching: bool = False

    @property
    def across(self) -> bool:
        """True if it runs across the picture, False if it runs along the street."""
        return self.y0 == self.y1

    @property
    def length(self) -> float:
        """Length in pixels."""
        return math.hypot(self.x1 - self.x0, self.y1 - self.y0)


def _across(y: float, scale: float, pavement: bool, mirrored: bool) -> Lane:
    x0, x1 = (BASE_WIDTH, 0.0) if mirrored else (0.0, BASE_WIDTH)
    return Lane(x0, y, x1, y, scale, scale, pavement, mirrored)


def _along(offset: float, pavement: bool, approaching: bool) -> Lane:
    """Returns a lane to the vanishing point; ``offset`` is its distance from the middle at the near end."""
    far = 128.0
    part = (far - _HORIZON) / (_NEAR - _HORIZON)
    near_end = (160.0 + offset, _NEAR, 1.08)
    far_end = (160.0 + offset * part, far, 0.46)
    start, end = (far_end, near_end) if approaching else (near_end, far_end)
    return Lane(start[0], start[1], end[0], end[1], start[2], end[2], pavement, approaching=approaching)


LANES: Mapping[View, tuple[Lane, ...]] = {
    "side": (
        _across(133, 0.74, True, False),
        _across(139, 0.78, True, True),
        _across(162, 0.84, False, True),
        _across(185, 0.92, False, True),
        _across(209, 1.0, False, False),
        _across(230, 1.04, True, True),
        _across(236, 1.08, True, False),
    ),
    "front": (
        _along(-142, True, True),
        _along(-122, True, False),
        _along(-76, False, True),
        _along(-26, False, True),
        _along(26, False, False),
        _along(76, False, False),
        _along(124, True, True),
        _along(144, True, False),
    ),
    "high": (
        _across(34, 0.92, True, False),
        _across(48, 0.94, True, True),
        _across(86, 0.92, False, True),
        _across(122, 0.96, False, True),
        _across(158, 1.0, False, False),
        _across(192, 1.02, False, False),
        _across(222, 1.04, True, True),
        _across(236, 1.06, True, False),
    ),
}


def paint_street(view: View, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Paints the empty street by day, (240, 320, 3) uint8 BGR; each generator state gives another street."""
    street = _Street(np.zeros((BASE_HEIGHT, BASE_WIDTH, 3), np.uint8), rng)
    {"side": _paint_side, "front": _paint_front, "high": _paint_high}[view](street)
    grain = rng.normal(0.0, 1.0, (BASE_HEIGHT, BASE_WIDTH, 1)).astype(np.float32)
    patches = cv2.resize(rng.normal(0.0, 1.0, (15, 20)).astype(np.float32), (BASE_WIDTH, BASE_HEIGHT))
    textured = street.picture.astype(np.float32) + 3.0 * grain + 4.0 * patches[..., None]
    finished: NDArray[np.uint8] = np.clip(textured, 0, 255).astype(np.uint8)
    return finished


_ASPHALT: Colour = (98, 96, 94)
_PAVING: Colour = (150, 152, 154)
_KERB: Colour = (176, 180, 182)
_PAINT: Colour = (206, 210, 212)
_LEAVES: Colour = (62, 108, 70)
_WALLS: tuple[Colour, ...] = (
    (128, 150, 176), (112, 124, 150), (150, 156, 160), (138, 168, 186), (120, 126, 128), (104, 120, 164),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Street:
    """A street that is being painted, with its random generator."""

    picture: NDArray[np.uint8]
    rng: np.random.Generator

    def box(self, colour: Colour, *corners: float) -> None:
        """Fills a rectangle x0 y0 x1 y1."""
        x0, y0, x1, y1 = map(round, corners)
        cv2.rectangle(self.picture, (x0, y0), (x1, y1), colour, -1)

    def fill(self, colour: Colour, *points: tuple[float, float]) -> None:
        """Fills a polygon."""
        cv2.fillPoly(self.picture, [np.array(points).round().astype(np.int32)], colour, cv2.LINE_AA)

    def joints(self, xs: range, y0: int, y1: int, lean: int) -> None:
        """Draws the joints of a pavement, whose lower ends lie ``lean`` pixels farther left."""
        for x in xs:
            cv2.line(self.picture, (x, y0), (x - lean, y1), shade(_PAVING, 0.9), 1, cv2.LINE_AA)

    def marks(self, xs: range, y: int, length: int) -> None:
        """Paints the marks between two lanes."""
        for x in xs:
            self.box(_PAINT, x, y, x + length, y + 1)

    def leaf(self, x: float, y: float, radius: int, light: float) -> None:
        """Paints a part of a tree's crown."""
        cv2.circle(self.picture, (round(x), round(y)), radius, shade(_LEAVES, light), -1, cv2.LINE_AA)

    def wall(self) -> Colour:
        """Returns the colour of a random wall."""
        colour = _WALLS[int(self.rng.integers(len(_WALLS)))]
        return shade(colour, self.rng.uniform(0.85, 1.1))

    def asphalt(self) -> Colour:
        """Returns a random shade of asphalt."""
        return shade(_ASPHALT, self.rng.uniform(0.85, 1.15))

    def plots(self, first: float, low: float, high: float) -> Iterator[tuple[float, float]]:
        """Yields left edge and random width of plots side by side, the first of which begins outside."""
        x = -self.rng.uniform(0, first)
        while x < BASE_WIDTH:
            width = self.rng.uniform(low, high)
            yield x, width
            x += width


def _paint_side(street: _Street) -> None:
    rng = street.rng
    street.box((226, 206, 180), 0, 0, 320, 60)
    for x, width in street.plots(30, 46, 84):
        _paint_house(street, x, rng.uniform(0, 36), width)
    street.box(_PAVING, 0, 120, 320, 142)
    street.joints(range(int(rng.integers(0, 14)), 320, 14), 120, 142, 8)
    for x in rng.uniform(0, 320, 3).tolist():
        street.box((56, 72, 88), x - 1, 98, x + 2, 122)
        for _ in range(9):
            at, light = (x + rng.normal(0, 8), 88 + rng.normal(0, 7)), rng.uniform(0.7, 1.25)
            street.leaf(*at, int(rng.integers(5, 9)), light)
    street.box(_KERB, 0, 142, 320, 144)
    street.box(street.asphalt(), 0, 145, 320, 216)
    for y, gap in ((167, 26), (190, 30)):
        street.marks(range(int(rng.integers(-20, 0)), 320, gap), y, 12)
    street.box(_KERB, 0, 215, 320, 218)
    street.box(shade(_PAVING, 1.04), 0, 219, 320, 240)
    street.joints(range(int(rng.integers(0, 22)), 340, 22), 219, 240, 14)


def _paint_house(street: _Street, x: float, top: float, width: float) -> None:
    wall = street.wall()
    street.box(wall, x, top, x + width, 119)
    street.box(shade(wall, 0.7), x, top, x + width, top + 3)
    pane = shade((120, 104, 88), street.rng.uniform(0.8, 1.3))
    for y in np.arange(top + 9, 86, 19).tolist():
        for u in np.arange(x + 6, x + width - 9, 14).tolist():
            street.box(pane, u, y, u + 7, y + 10)
            street.box(shade(wall, 1.15), u, y + 11, u + 7, y + 12)
    street.box(shade(wall, 0.8), x + 3, 92, x + width - 3, 118)
    street.box(shade(pane, 1.1), x + 6, 97, x + width - 20, 114)
    awning = shade(_WALLS[int(street.rng.integers(len(_WALLS)))], 1.15)
    street.fill(awning, (x + 4, 91), (x + width - 18, 91), (x + width - 15, 97), (x + 2, 97))


def _paint_front(street: _Street) -> None:
    for y in range(110):
        street.box((232 - y // 6, 214 - y // 8, 190 - y // 12), 0, y, 320, y)
    street.box(_PAVING, 0, 100, 320, 240)
    middle = (160.0, _HORIZON)
    for sign in (-1, 1):
        edge = 160.0 + sign * 168
        for near, far in ((1.0, 0.62), (0.62, 0.4), (0.4, 0.27), (0.27, 0.18)):
            wall = street.wall()
            height = 88 - street.rng.uniform(10, 60) * 0.4
            a, b = (
                (160 + sign * 168 * part, _HORIZON - height * part, _HORIZON + 130 * part)
                for part in (near, far)
            )
            street.fill(wall, (a[0], a[1]), (b[0], b[1]), (b[0], b[2]), (a[0], a[2]))
            for floor in (0.2, 0.42, 0.64):
                _paint_windows(street, shade(wall, 0.62), np.array(a), np.array(b), floor)
        street.fill(shade(_PAVING, 1.03), middle, (edge, 208), (edge, 240), (160.0 + sign * 110, 240))
    road = 113.0
    street.fill(_KERB, middle, (160 - road - 4, 240), (160 + road + 4, 240))
    street.fill(street.asphalt(), middle, (160 - road, 240), (160 + road, 240))
    low, high = _HORIZON + 12, _HORIZON - 14
    street.fill((150, 140, 128), (120, low), (200, low), (180, high), (140, high))
    for part in np.geomspace(0.14, 1.0, 9).tolist():
        y0, y1, thick = _HORIZON + 162 * part, _HORIZON + 162 * part * 1.14, 1.6 * part
        for offset in (-52.0, 0.0, 52.0):
            x0, x1 = 160 + offset * part, 160 + offset * part * 1.14
            street.fill(_PAINT, (x0 - thick, y0), (x0 + thick, y0), (x1 + thick, y1), (x1 - thick, y1))


def _paint_windows(
    street: _Street, colour: Colour, near: NDArray[np.float64], far: NDArray[np.float64], floor: float
) -> None:
    """Paints the windows on one floor of a house whose near and far edges are (x, top, foot)."""
    for start in (0.12, 0.42, 0.72):
        end, sill = start + 0.16, floor + 0.12
        corners = []
        for along, down in ((start, floor), (end, floor), (end, sill), (start, sill)):
            x, top, foot = (near + (far - near) * along).tolist()
            corners.append((x, top + (foot - top) * down))
        street.fill(colour, *corners)


def _paint_high(street: _Street) -> None:
    rng = street.rng
    street.box(_PAVING, 0, 0, 320, 240)
    for x in range(0, 320, 16):
        street.box(shade(_PAVING, 0.93), x, 0, x, 240)
    for y in range(0, 240, 12):
        street.box(shade(_PAVING, 0.93), 0, y, 320, y)
    for left, width in street.plots(40, 40, 80):
        lawn = rng.random() < 0.5
        street.box(shade(_LEAVES, 1.2) if lawn else street.wall(), left, 0, left + width - 6, 12)
    street.box(_KERB, 0, 54, 320, 204)
    street.box(street.asphalt(), 0, 57, 320, 201)
    street.box(_PAINT, 0, 127, 320, 128)
    for y in (92, 164):
        street.marks(range(int(rng.integers(-30, 0)), 320, 34), y, 16)
    crossing = int(rng.integers(60, 240))
    for y in range(60, 200, 12):
        street.box(shade(_PAINT, 0.95), crossing, y, crossing + 18, y + 5)
    for tree in rng.uniform(0, 320, 4).tolist():
        for _ in range(7):
            at = (tree + rng.normal(0, 5), float(rng.choice((8, 212))) + rng.normal(0, 2))
            street.leaf(*at, int(rng.integers(3, 6)), rng.uniform(0.7, 1.2))
