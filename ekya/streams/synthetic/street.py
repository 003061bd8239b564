"""Background picture of the street, and the lanes along which actors move."""

from collections.abc import Mapping
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from ekya.streams.synthetic.palette import Colour, shade
from ekya.streams.synthetic.scene import View

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
    picture = np.zeros((BASE_HEIGHT, BASE_WIDTH, 3), np.uint8)
    {"side": _paint_side, "front": _paint_front, "high": _paint_high}[view](picture, rng)
    grain = rng.normal(0.0, 1.0, (BASE_HEIGHT, BASE_WIDTH, 1)).astype(np.float32)
    patches = cv2.resize(rng.normal(0.0, 1.0, (15, 20)).astype(np.float32), (BASE_WIDTH, BASE_HEIGHT))
    textured = picture.astype(np.float32) + 3.0 * grain + 4.0 * patches[..., None]
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


def _box(picture: NDArray[np.uint8], colour: Colour, *corners: float) -> None:
    x0, y0, x1, y1 = corners
    cv2.rectangle(picture, (round(x0), round(y0)), (round(x1), round(y1)), colour, -1)


def _fill(picture: NDArray[np.uint8], colour: Colour, *points: tuple[float, float]) -> None:
    cv2.fillPoly(picture, [np.array(points).round().astype(np.int32)], colour, cv2.LINE_AA)


def _asphalt(rng: np.random.Generator) -> Colour:
    return shade(_ASPHALT, float(rng.uniform(0.85, 1.15)))


def _wall(rng: np.random.Generator) -> Colour:
    return shade(_WALLS[int(rng.integers(len(_WALLS)))], float(rng.uniform(0.85, 1.1)))


def _paint_side(picture: NDArray[np.uint8], rng: np.random.Generator) -> None:
    _box(picture, (226, 206, 180), 0, 0, 320, 60)
    x = -float(rng.uniform(0, 30))
    while x < BASE_WIDTH:
        width = float(rng.uniform(46, 84))
        _house(picture, rng, x, float(rng.uniform(0, 36)), width)
        x += width
    _box(picture, _PAVING, 0, 120, 320, 142)
    for x_slab in range(int(rng.integers(0, 14)), 320, 14):
        cv2.line(picture, (x_slab, 120), (x_slab - 8, 142), shade(_PAVING, 0.9), 1, cv2.LINE_AA)
    for x_tree in rng.uniform(0, 320, 3):
        _tree(picture, rng, float(x_tree), 122.0)
    _box(picture, _KERB, 0, 142, 320, 144)
    _box(picture, _asphalt(rng), 0, 145, 320, 216)
    for y, gap in ((167, 26), (190, 30)):
        for x_mark in range(int(rng.integers(-20, 0)), 320, gap):
            _box(picture, _PAINT, x_mark, y, x_mark + 12, y + 1)
    _box(picture, _KERB, 0, 215, 320, 218)
    _box(picture, shade(_PAVING, 1.04), 0, 219, 320, 240)
    for x_slab in range(int(rng.integers(0, 22)), 340, 22):
        cv2.line(picture, (x_slab, 219), (x_slab - 14, 240), shade(_PAVING, 0.9), 1, cv2.LINE_AA)


def _house(picture: NDArray[np.uint8], rng: np.random.Generator, x: float, top: float, width: float) -> None:
    wall = _wall(rng)
    _box(picture, wall, x, top, x + width, 119)
    _box(picture, shade(wall, 0.7), x, top, x + width, top + 3)
    pane = shade((120, 104, 88), float(rng.uniform(0.8, 1.3)))
    for y in np.arange(top + 9, 86, 19):
        for u in np.arange(x + 6, x + width - 9, 14):
            _box(picture, pane, u, y, u + 7, y + 10)
            _box(picture, shade(wall, 1.15), u, y + 11, u + 7, y + 12)
    _box(picture, shade(wall, 0.8), x + 3, 92, x + width - 3, 118)
    _box(picture, shade(pane, 1.1), x + 6, 97, x + width - 20, 114)
    awning = shade(_WALLS[int(rng.integers(len(_WALLS)))], 1.15)
    _fill(picture, awning, (x + 4, 91), (x + width - 18, 91), (x + width - 15, 97), (x + 2, 97))


def _tree(picture: NDArray[np.uint8], rng: np.random.Generator, x: float, foot: float) -> None:
    _box(picture, (56, 72, 88), x - 1, foot - 24, x + 2, foot)
    for _ in range(9):
        spot = (round(x + float(rng.normal(0, 8))), round(foot - 34 + float(rng.normal(0, 7))))
        leaf = shade(_LEAVES, float(rng.uniform(0.7, 1.25)))
        cv2.circle(picture, spot, int(rng.integers(5, 9)), leaf, -1, cv2.LINE_AA)


def _paint_front(picture: NDArray[np.uint8], rng: np.random.Generator) -> None:
    for y in range(110):
        _box(picture, (232 - y // 6, 214 - y // 8, 190 - y // 12), 0, y, 320, y)
    _box(picture, _PAVING, 0, 100, 320, 240)
    middle = (160.0, _HORIZON)
    for sign in (-1, 1):
        edge = 160.0 + sign * 168
        for near, far in ((1.0, 0.62), (0.62, 0.4), (0.4, 0.27), (0.27, 0.18)):
            wall = _wall(rng)
            top = float(rng.uniform(10, 60))
            xa, xb = 160 + sign * 168 * near, 160 + sign * 168 * far
            ya, yb = _HORIZON + 130 * near, _HORIZON + 130 * far
            ta, tb = _HORIZON - (88 - top * 0.4) * near, _HORIZON - (88 - top * 0.4) * far
            _fill(picture, wall, (xa, ta), (xb, tb), (xb, yb), (xa, ya))
            for floor in (0.2, 0.42, 0.64):
                _windows(picture, shade(wall, 0.62), (xa, ta, ya), (xb, tb, yb), floor)
        _fill(picture, shade(_PAVING, 1.03), middle, (edge, 208), (edge, 240), (160.0 + sign * 110, 240))
    road = 113.0
    _fill(picture, _KERB, middle, (160 - road - 4, 240), (160 + road + 4, 240))
    _fill(picture, _asphalt(rng), middle, (160 - road, 240), (160 + road, 240))
    _fill(
        picture,
        (150, 140, 128),
        (120, _HORIZON + 12),
        (200, _HORIZON + 12),
        (180, _HORIZON - 14),
        (140, _HORIZON - 14),
    )
    for part in np.geomspace(0.14, 1.0, 9):
        y0, y1 = _HORIZON + 162 * part, _HORIZON + 162 * part * 1.14
        for offset in (-52.0, 0.0, 52.0):
            xs = [160 + offset * part, 160 + offset * part * 1.14]
            thick = 1.6 * part
            _fill(
                picture,
                _PAINT,
                (xs[0] - thick, y0),
                (xs[0] + thick, y0),
                (xs[1] + thick, y1),
                (xs[1] - thick, y1),
            )


def _windows(
    picture: NDArray[np.uint8],
    colour: Colour,
    near: tuple[float, float, float],
    far: tuple[float, float, float],
    floor: float,
) -> None:
    """Paints the windows on one floor of a house whose near and far edges are (x, top, foot)."""
    for start in (0.12, 0.42, 0.72):
        corners = []
        for along, down in (
            (start, floor),
            (start + 0.16, floor),
            (start + 0.16, floor + 0.12),
            (start, floor + 0.12),
        ):
            x = near[0] + (far[0] - near[0]) * along
            top = near[1] + (far[1] - near[1]) * along
            foot = near[2] + (far[2] - near[2]) * along
            corners.append((x, top + (foot - top) * down))
        _fill(picture, colour, *corners)


def _paint_high(picture: NDArray[np.uint8], rng: np.random.Generator) -> None:
    _box(picture, _PAVING, 0, 0, 320, 240)
    for x_slab in range(0, 320, 16):
        cv2.line(picture, (x_slab, 0), (x_slab, 240), shade(_PAVING, 0.93), 1)
    for y_slab in range(0, 240, 12):
        cv2.line(picture, (0, y_slab), (320, y_slab), shade(_PAVING, 0.93), 1)
    x = -float(rng.uniform(0, 40))
    while x < BASE_WIDTH:
        width = float(rng.uniform(40, 80))
        lawn = rng.random() < 0.5
        _box(picture, shade(_LEAVES, 1.2) if lawn else _wall(rng), x, 0, x + width - 6, 12)
        x += width
    _box(picture, _KERB, 0, 54, 320, 204)
    _box(picture, _asphalt(rng), 0, 57, 320, 201)
    _box(picture, _PAINT, 0, 127, 320, 128)
    for y in (92, 164):
        for x_mark in range(int(rng.integers(-30, 0)), 320, 34):
            _box(picture, _PAINT, x_mark, y, x_mark + 16, y + 1)
    crossing = int(rng.integers(60, 240))
    for y in range(60, 200, 12):
        _box(picture, shade(_PAINT, 0.95), crossing, y, crossing + 18, y + 5)
    for x_tree in rng.uniform(0, 320, 4):
        for _ in range(7):
            spot = (
                round(float(x_tree + rng.normal(0, 5))),
                round(float(rng.choice((8, 212)) + rng.normal(0, 2))),
            )
            cv2.circle(
                picture,
                spot,
                int(rng.integers(3, 6)),
                shade(_LEAVES, float(rng.uniform(0.7, 1.2))),
                -1,
                cv2.LINE_AA,
            )
