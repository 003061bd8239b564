"""Draws the city's bodies from any angle: people as they are, vehicles as solids with their painted faces."""

import math

import cv2
import numpy as np
from numpy.typing import NDArray
from rendered_canvas import Box, Canvas, Matte

from ekya.streams.synthetic.bodies import Body, draw_model, find_body
from ekya.streams.synthetic.scene import KINDS, Colours, Kind, StreetScene, View, draw_colours

_OUTSIDE = 4
"""Pixels around a body's box, for what reaches over it."""

_PEOPLE = 0.35
"""Part of the bodies that are people, who look least alike in pictures."""

_MOST_LAYERS, _PIXELS_A_LAYER = 30, 2.0
_SEEN_FROM_ABOVE = 0.15
Vector = NDArray[np.float64]


def draw_body(
    rng: np.random.Generator,
    canvas: Canvas,
    scene: StreetScene,
    height: float,
    foot: tuple[float, float],
    pitch: float,
    squeeze: float,
) -> None:
    """Draws a body on a canvas.

    Args:
        rng: of its kind, model, colours and direction.
        canvas: square, to draw on.
        scene: its fleet, livery and clothing.
        height: of a standing person at the same place, as a part of the canvas.
        foot: x and y of the middle of its foot, likewise.
        pitch: how far the camera looks down, radians.
        squeeze: width of a pixel of the frame before it was made square.
    """
    kind: Kind = "person" if rng.random() < _PEOPLE else KINDS[int(rng.integers(1, len(KINDS)))]
    model = draw_model(rng, kind, scene.fleet, bool(scene.clothing == "rainwear"))
    colours = _colours(rng, kind, scene)
    side = len(canvas.picture)
    tall = height * side * _stature(kind) * float(rng.uniform(0.85, 1.15))
    at = np.array(foot) * side
    _shadow(rng, canvas, at, tall, squeeze)
    if kind == "person" or rng.random() < 0.35:
        above = rng.random() < _SEEN_FROM_ABOVE
        view: View = "high" if above else "front" if rng.random() < 0.6 else "side"
        body = find_body(model, view, bool(rng.random() < 0.5))
        parts = [_standing(rng, canvas, body, colours, tall, at, squeeze)]
    else:
        solid = kind in {"car", "truck", "bus"}
        parts = _turned(rng, canvas, model, colours, tall, at, pitch, squeeze, solid)
    boxes = np.array([box for box, _ in parts])
    x0, y0 = boxes[:, :2].min(axis=0).tolist()
    x1, y1 = boxes[:, 2:].max(axis=0).tolist()
    # Layers hide each other: of a solid only the pixels inside its outline show.
    area = parts[0][1] if len(parts) == 1 else 0.7 * (x1 - x0) * (y1 - y0)
    canvas.note(KINDS.index(kind), (x0, y0, x1, y1), area)


def _stature(kind: Kind) -> float:
    return {"person": 1.0, "car": 0.9, "truck": 1.7, "bus": 1.8, "bicycle": 1.0, "motorcycle": 0.95}[kind]


def _colours(rng: np.random.Generator, kind: Kind, scene: StreetScene) -> Colours:
    """Returns colours of the city, or in half of the cases any others."""
    colours = draw_colours(rng, kind, scene.livery, scene.clothing)
    if rng.random() < 0.5:
        return colours
    drawn = [
        tuple(map(int, rng.integers(10, 246) + rng.integers(-60, 61, 3).clip(-250, 250))) for _ in range(4)
    ]
    clipped = [tuple(min(250, max(5, part)) for part in colour) for colour in drawn]
    return Colours(clipped[0], clipped[1], clipped[2], clipped[3], colours.skin)


def _shadow(rng: np.random.Generator, canvas: Canvas, at: Vector, tall: float, squeeze: float) -> None:
    if rng.random() < 0.5:
        return
    reach = (max(1, round(0.5 * tall * squeeze)), max(1, round(0.12 * tall)))
    middle = (round(at[0] + rng.normal(0, 0.1) * tall), round(at[1]))
    dark = np.zeros(canvas.owner.shape, np.uint8)
    cv2.ellipse(dark, middle, reach, 0, 0, 360, int(rng.integers(60, 170)), -1)
    canvas.picture[:] = cv2.multiply(canvas.picture, cv2.merge([255 - dark] * 3), scale=1 / 255)


def _matte(rng: np.random.Generator, body: Body, colours: Colours, height: float, step: float) -> Matte:
    """Draws a body on black and on white, from which its transparency follows, and varies its shades."""
    rows = max(12, min(240, round(height)))
    columns = max(6, round(rows * body.width / body.height))
    shape = (rows + 2 * _OUTSIDE, columns + 2 * _OUTSIDE, 3)
    box = (_OUTSIDE, _OUTSIDE, _OUTSIDE + columns, _OUTSIDE + rows)
    drawn = []
    for ground in (0, 255):
        picture = np.full(shape, ground, np.uint8)
        body.draw_body(picture, box, False, colours, step)
        drawn.append(picture.astype(np.float32))
    alpha = 1.0 - np.clip(drawn[1][:, :, 0] - drawn[0][:, :, 0], 0, 255) / np.float32(255)
    cells = rng.uniform(0.65, 1.25, (int(rng.integers(2, 7)), int(rng.integers(2, 5)))).astype(np.float32)
    shades = cv2.resize(cells, (shape[1], shape[0]), interpolation=cv2.INTER_LINEAR)
    grain = 1.0 + float(rng.uniform(0, 0.12)) * rng.standard_normal(shape[:2], np.float32)
    return Matte(cv2.multiply(drawn[0], cv2.merge([shades * grain] * 3)), alpha)


def _on_plane(matte: Matte, origin: Vector, along: Vector, down: Vector) -> Vector:
    """Returns how a matte is placed whose body's box has this corner and these edges on the canvas."""
    rows, columns = (length - 2 * _OUTSIDE for length in matte.alpha.shape)
    edges = np.stack([along / columns, down / rows], axis=1)
    return np.column_stack([edges, origin - edges @ (_OUTSIDE, _OUTSIDE)])


def _standing(
    rng: np.random.Generator,
    canvas: Canvas,
    body: Body,
    colours: Colours,
    tall: float,
    at: Vector,
    squeeze: float,
) -> tuple[Box, float]:
    """Draws a body as it is painted, leaning a little."""
    matte = _matte(rng, body, colours, tall, float(rng.uniform(0, 6.28)))
    width = tall * body.width / body.height * float(rng.uniform(0.85, 1.2))
    lean = float(rng.normal(0, 0.06))
    along = np.array([squeeze * width * math.cos(lean), width * math.sin(lean)])
    down = np.array([-squeeze * tall * math.sin(lean), tall * math.cos(lean)])
    if rng.random() < 0.5:
        along = -along
    return canvas.paste(matte, _on_plane(matte, at - along / 2 - down, along, down))


def _turned(
    rng: np.random.Generator,
    canvas: Canvas,
    model: str,
    colours: Colours,
    tall: float,
    at: Vector,
    pitch: float,
    squeeze: float,
    solid: bool,
) -> list[tuple[Box, float]]:
    """Draws a vehicle that is turned by any angle: its side, and if solid its depth and its front or rear."""
    side, front = find_body(model, "side", True), find_body(model, "front", True)
    yaw = float(rng.uniform(0, 2 * math.pi))
    # The front's picture is of a vehicle that is nearer: its width is taken relative to its height.
    high = 0.62 * tall
    long, wide = high * side.width / side.height, high * front.width / front.height
    if not solid:
        high, long, wide = tall, tall * side.width / side.height, 0.0
    forward = long * np.array([squeeze * math.cos(yaw), -math.sin(yaw) * math.sin(pitch)])
    depth = wide * np.array([-squeeze * math.sin(yaw), -math.cos(yaw) * math.sin(pitch)])
    down = np.array([0.0, high * math.cos(pitch)])
    faces_us = math.sin(yaw) < 0
    near = 0.0 if math.cos(yaw) > 0 else 1.0
    start = at - forward / 2 - depth / 2 - down
    face = _matte(rng, side, colours, high, float(rng.uniform(0, 6.28)))
    if not solid:
        return [canvas.paste(face, _on_plane(face, start, forward, down))]
    dull = Matte(face.colour * float(rng.uniform(0.7, 1.3)), face.alpha)
    count = 2 + min(_MOST_LAYERS, int(np.hypot(*depth) / _PIXELS_A_LAYER))
    layers = np.linspace(1 - near, near, count).tolist()
    parts = [canvas.paste(dull, _on_plane(dull, start + part * depth, forward, down)) for part in layers]
    if abs(math.sin(yaw)) > 0.15:
        end = find_body(model, "front", faces_us)
        painted = _matte(rng, end, colours, high, 0.0)
        corner = start + (0.92 if faces_us else 0.04) * forward
        parts.append(canvas.paste(painted, _on_plane(painted, corner, depth, down)))
    parts.append(canvas.paste(face, _on_plane(face, start + near * depth, forward, down)))
    return parts
