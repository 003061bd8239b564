"""Pictures of a rendered city: streets, textured bodies that hide each other, light, weather, the camera."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import cv2
import difficulty
import numpy as np
from city_scenes import CLUTTER, Section, Thing
from numpy.typing import NDArray

from ekya.streams.synthetic.bodies import Body, find_body
from ekya.streams.synthetic.scene import INKS
from ekya.streams.synthetic.source import Levels, levels_between
from ekya.streams.synthetic.street import paint_street

_STREETS = 4
_OUTSIDE = 4
_MOST_ROWS = 150
_NOISE = 32.0
_HAZE_GREY = 150.0
_SMEAR = 0.06
_RIDER_INKS = frozenset({"legs", "top", "skin"})
_SUN = np.array([110.0, 190.0, 255.0], np.float32)
_WARM = np.array([0.7, 0.95, 1.1], np.float32)

Picture = NDArray[np.uint8]
Floats = NDArray[np.float32]
_Lamp = tuple[float, float, float, bool]


class Shown(NamedTuple):
    """A part of a thing in a picture, in the order of painting: riders are parts of their own.

    Attributes:
        thing: its number in the list of things.
        name: its label.
        kind: what it is.
        outline: (N, 2) corners around it, also around what is hidden, in parts of the picture.
        visible: part of it that is inside the picture and in front.
    """

    thing: int
    name: str
    kind: str
    outline: NDArray[np.float64]
    visible: float

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Box x0 y0 x1 y1 around the outline, in parts of the picture."""
        (x0, y0), (x1, y1) = self.outline.min(axis=0).tolist(), self.outline.max(axis=0).tolist()
        return x0, y0, x1, y1


class _Layer(NamedTuple):
    """A drawn part without background, in a window of the picture.

    Attributes:
        name, kind: as in ``Shown``.
        colour: (h, w, 3) float32 BGR, multiplied by ``alpha``.
        alpha: (h, w) float32 in [0, 1].
        lamps: rows x, y, radius, and 1 for red, in pixels of the window.
    """

    name: str
    kind: str
    colour: Floats
    alpha: Floats
    lamps: list[_Lamp]


@dataclass(frozen=True, slots=True, eq=False)
class Studio:
    """Paints pictures of one section; what is slow to paint is painted once.

    Attributes:
        section: to show.
        size: width and height of its pictures.
        streets: by day, as large as the pictures and a third larger.
        levels: strength of each effect of its light.
        noise: (2 h, 2 w, 3) int16.
        gain, veil: of its light and weather, (h, w, 3).
    """

    section: Section
    size: tuple[int, int]
    streets: list[Picture]
    levels: Levels
    noise: NDArray[np.int16]
    gain: Floats
    veil: Floats

    @staticmethod
    def open(section: Section, size: tuple[int, int]) -> "Studio":
        """Paints the streets of a section."""
        rng = np.random.default_rng((*section.seed, 0))
        width, height = size
        levels = levels_between(section.scene.lighting, section.scene.lighting, 1.0)
        y, x = np.mgrid[0:height, 0:width].astype(np.float32) / height
        pools, start = np.zeros_like(x), float(rng.uniform(0.1, 0.5))
        for at in np.arange(start, width / height, 0.6).tolist():
            pools += np.exp(-(((x - at) / 0.22) ** 2) - ((y - 0.75) / 0.3) ** 2)
        colour = np.array([levels.blue, levels.green, levels.red], np.float32) * np.float32(section.gains)
        gain = (colour + levels.pools * np.minimum(pools, 1)[..., None] * _WARM) * (1 - levels.haze)
        away = np.hypot(x - float(rng.uniform(0.2, 1.8)), y - float(rng.uniform(0, 0.3)))
        glare = (np.exp(-away / 0.35) + 0.12)[..., None] * _SUN
        veil = levels.haze * _HAZE_GREY + 0.62 * levels.glare * glare
        noise = rng.normal(0, _NOISE, (height * 2, width * 2, 3)).astype(np.int16)
        streets = [_paint_background(rng, section, size) for _ in range(_STREETS)]
        return Studio(section, size, streets, levels, noise, gain.astype(np.float32), np.float32(veil))

    def paint(
        self, things: Sequence[Thing], rng: np.random.Generator, street: int = 0, slide: float = 0.5
    ) -> tuple[Picture, list[Shown]]:
        """Paints things before a street.

        Args:
            things: as they stand in this picture.
            rng: of the noise and rain of this picture.
            street: number of the street.
            slide: place along it, in [0, 1].

        Returns:
            The picture, (h, w, 3) uint8 BGR, and what is seen in it, the farthest first.
        """
        width, height = self.size
        wide = self.streets[street % _STREETS]
        left = round(slide * (wide.shape[1] - width))
        canvas = wide[:, left : left + width].astype(np.float32)
        owner = np.full((height, width), -1, np.int16)
        noted: list[tuple[int, _Layer, tuple[int, int]]] = []
        far_first = sorted(range(len(things)), key=lambda number: (things[number].height, number))
        for number in far_first:
            thing = things[number]
            if not 0.4 * difficulty.SMALLEST < thing.height < 1.6 * difficulty.LARGEST or abs(thing.x) > 3:
                continue
            foot = thing.x * width, (self.section.horizon + self.section.eye * thing.height) * height
            tall = thing.height * thing.stature * height
            _cast_shadow(canvas, foot, tall, 0.35 if thing.kind in CLUTTER else 0.6)
            for layer, corner in _draw_layers(thing, tall, foot, self.section.eye * thing.height * height):
                if _paste(canvas, owner, layer, corner, len(noted)):
                    noted.append((number, layer, corner))
        seen = np.bincount(owner[owner >= 0], minlength=len(noted))
        shown, lamps = [], []
        for at, (number, layer, corner) in enumerate(noted):
            solid = layer.alpha > 0.5
            visible = float(seen[at] / max(1, np.count_nonzero(solid)))
            for x, y, radius, red in layer.lamps:
                column, row = round(x + corner[0]), round(y + corner[1])
                if 0 <= column < width and 0 <= row < height and owner[row, column] == at:
                    lamps.append((column, row, radius, red))
            if seen[at] and (outline := _outline(solid, corner, self.size)) is not None:
                shown.append(Shown(number, layer.name, layer.kind, outline, visible))
        return self._photograph(canvas, lamps, rng), shown

    def _photograph(self, canvas: Floats, lamps: Sequence[_Lamp], rng: np.random.Generator) -> Picture:
        """Returns the picture as the camera takes it: in its light and weather, blurred and noisy."""
        section, levels, (width, height) = self.section, self.levels, self.size
        lit = cv2.add(cv2.multiply(canvas, self.gain), self.veil)
        if levels.lamps > 0.02 and lamps:
            glow = np.zeros((height // 2, width // 2, 3), np.uint8)
            for x, y, radius, red in lamps:
                ink = (30, 30, 255) if red else (225, 245, 255)
                cv2.circle(glow, (round(x / 2), round(y / 2)), max(1, round(radius / 4)), ink, -1)
            spread = cv2.GaussianBlur(glow, (0, 0), 2.5)
            lit = cv2.scaleAdd(cv2.resize(spread, self.size).astype(np.float32), 1.6 * levels.lamps, lit)
        if levels.rain > 0.02:
            drops = np.zeros((height, width), np.uint8)
            for x, y, long, grey in rng.integers((0, 0, 8, 20), (width, height, 24, 70), (260, 4)).tolist():
                cv2.line(drops, (x, y), (x - long // 4, y + long), grey, 1, cv2.LINE_AA)
            lit = cv2.scaleAdd(cv2.merge([drops.astype(np.float32)] * 3), levels.rain, lit)
        sigma = section.blur * width / 512
        picture = np.clip(cv2.GaussianBlur(lit, (0, 0), sigma) if sigma > 0.25 else lit, 0, 255)
        curve = 255 * np.linspace(0, 1, 256) ** section.gamma
        picture = cv2.LUT(picture.astype(np.uint8), curve.astype(np.uint8))
        y, x = int(rng.integers(height)), int(rng.integers(width))
        grain = self.noise[y : y + height, x : x + width]
        noised: Picture = cv2.addWeighted(
            picture, 1.0, grain, section.noise * levels.noise / _NOISE, 0.0, dtype=cv2.CV_8U
        )
        return noised


def _paint_background(rng: np.random.Generator, section: Section, size: tuple[int, int]) -> Picture:
    """Paints an empty street that is wider than the picture, with grain and patches of many sizes."""
    width, height = size
    street = paint_street(section.scene.view, rng)
    wide = round(width * 4 / 3)
    zoom = wide / street.shape[1] * float(rng.uniform(1.0, 1.15))
    # Where the painted streets have their horizon, as a part of their height.
    painted = {"front": 0.325, "side": 0.5}[section.scene.view] * street.shape[0] * zoom
    below = painted - section.horizon * height
    placing = np.float64([[zoom, 0, (wide - zoom * street.shape[1]) / 2], [0, zoom, -below]])
    warped = cv2.warpAffine(street, placing, (wide, height), borderMode=cv2.BORDER_REFLECT)
    picture = warped.astype(np.float32)
    for cells, strength in ((6, 18), (24, 14), (90, 10), (height // 2, 9)):
        grain = rng.normal(0, strength, (cells, 2 * cells)).astype(np.float32)
        picture += cv2.resize(grain, (wide, height), interpolation=cv2.INTER_LINEAR)[..., None]
    for _ in range(int(rng.integers(8, 24))):  # windows, boards, patches of tar
        x, y = float(rng.uniform(0, wide)), float(rng.uniform(0, height))
        w, h = np.exp(rng.uniform(np.log(4), np.log(46), 2)).tolist()
        part = picture[round(y) : round(y + h), round(x) : round(x + w)]
        part *= np.float32(rng.uniform(0.55, 1.3)) * rng.uniform(0.9, 1.1, 3).astype(np.float32)
    tint = rng.uniform(0.85, 1.15, 3)
    return np.clip(picture * tint, 0, 255).astype(np.uint8)


def _cast_shadow(canvas: Floats, foot: tuple[float, float], tall: float, strength: float) -> None:
    reach = max(2, round(0.6 * tall)), max(1, round(0.09 * tall))
    x0, y0 = max(0, round(foot[0]) - reach[0]), max(0, round(foot[1]) - reach[1])
    part = canvas[y0 : round(foot[1]) + reach[1] + 1, x0 : max(0, round(foot[0]) + reach[0] + 1)]
    if part.size == 0:
        return
    dark = np.zeros(part.shape[:2], np.uint8)
    cv2.ellipse(dark, (round(foot[0]) - x0, round(foot[1]) - y0), reach, 0, 0, 360, 255, -1)
    part *= 1 - strength / 255 * cv2.blur(dark, (5, 3)).astype(np.float32)[..., None]


def _draw_layers(
    thing: Thing, tall: float, foot: tuple[float, float], eye: float
) -> list[tuple[_Layer, tuple[int, int]]]:
    """Returns the parts of a thing and the corner of each one's window; ``eye`` is pixels above its foot."""
    rng = np.random.default_rng(thing.seed)
    faces = _faces(thing, tall, eye)
    edges = np.concatenate([quad for _, quad in faces])
    low = np.floor(edges.min(axis=0) + foot - _OUTSIDE).astype(int)
    high = np.ceil(edges.max(axis=0) + foot + _OUTSIDE).astype(int)
    shape = int(high[0] - low[0]), int(high[1] - low[1])
    colour, alpha = np.zeros((shape[1], shape[0], 3), np.float32), np.zeros(shape[::-1], np.float32)
    lamps: list[_Lamp] = []
    parts: list[_Layer] = []
    step = float(rng.uniform(0, 6.28))
    for body, quad in faces:
        rows = int(np.clip(1.2 * tall, 14, _MOST_ROWS))
        drawn, cover, its_lamps = _sprite(rng, thing, body, rows, step)
        inner = np.float32([_OUTSIDE, _OUTSIDE, cover.shape[1] - _OUTSIDE, cover.shape[0] - _OUTSIDE])
        source = inner[[0, 1, 2, 1, 2, 3, 0, 3]].reshape(4, 2)
        placing = cv2.getPerspectiveTransform(source, np.float32(quad + foot - low))
        flags = cv2.INTER_AREA if rows > tall else cv2.INTER_LINEAR
        drawn = cv2.warpPerspective(drawn, placing, shape, flags=flags)
        cover = cv2.warpPerspective(cover, placing, shape, flags=flags)
        if len(faces) > 1:
            drawn *= np.float32(rng.uniform(0.72, 1.12))
        colour = colour * (1 - cover)[..., None] + drawn
        alpha = np.maximum(alpha, cover)
        for x, y, radius, red in its_lamps:
            at = placing @ (x, y, 1)
            lamps.append((at[0] / at[2], at[1] / at[2], radius * tall / rows, red))
        if thing.kind in {"bicycle", "motorcycle"}:  # their riders follow
            name = thing.label if not parts else "rider"
            parts.append(_Layer(name, thing.kind if not parts else "rider", colour, alpha, lamps))
            colour, alpha, lamps = np.zeros_like(colour), np.zeros_like(alpha), []
    parts = parts or [_Layer(thing.label, thing.kind, colour, alpha, lamps)]
    return [(_weather_surface(rng, thing, part), (int(low[0]), int(low[1]))) for part in parts]


def _faces(thing: Thing, tall: float, eye: float) -> list[tuple[Body | None, NDArray[np.float64]]]:
    """Returns the painted faces of a thing, each with where its box's corners are, relative to the foot."""
    if thing.kind in CLUTTER:
        wide = tall * {"pole": 0.12, "traffic sign": 0.3, "vegetation": 1.1, "static": 0.8}[thing.kind]
        return [(None, _turn(np.array([[-1, -2], [1, -2], [1, 0], [-1, 0]]) * (wide / 2, tall / 2), thing))]
    body = find_body(thing.model, thing.view, thing.approaching)
    if thing.yaw == 0:
        wide = tall * body.width / body.height * thing.stretch
        quad = _turn(np.array([[-1, -2], [1, -2], [1, 0], [-1, 0]]) * (wide / 2, tall / 2), thing)
        return [(part, quad) for part in _riding(thing, body)]
    side, end = find_body(thing.model, "side", True), find_body(thing.model, "front", thing.approaching)
    long = math.cos(thing.yaw) * tall * side.width / side.height * thing.stretch
    wide = 0.8 * math.sin(thing.yaw) * tall * end.width / end.height
    quads = []
    for along, shrinks in ((long, 0.2), (-wide, 0.12)):
        small = max(0.62, 1 - shrinks * abs(along) / tall)
        top, bottom = -eye + small * (eye - tall), -eye + small * eye
        quads.append(np.array([[0, -tall], [along, top], [along, bottom], [0, 0]]))
    # The shared edge is the vehicle's front where it approaches, and its rear where it leaves.
    if thing.approaching:
        quads[0] = quads[0][[1, 0, 3, 2]]
    quads[1] = quads[1][[1, 0, 3, 2]]
    middle = ((long - wide) / 2, 0.0)
    return [(face, _turn(quad - middle, thing)) for face, quad in zip((side, end), quads, strict=True)]


def _turn(quad: NDArray[np.float64], thing: Thing) -> NDArray[np.float64]:
    """Returns the corners of a mirrored thing's face; those of others as they are."""
    return quad * (-1, 1) if thing.mirrored else quad


def _riding(thing: Thing, body: Body) -> list[Body]:
    """Returns the body, or a bicycle's and a motorcycle's without its rider, and then the rider."""
    if thing.kind not in {"bicycle", "motorcycle"}:
        return [body]
    rider = [
        figure.colour in _RIDER_INKS or all(point[1] < 0.2 for point in figure.points)
        for figure in body.figures
    ]
    parts = []
    for wanted in (False, True) if thing.ridden else (False,):
        figures = tuple(figure for figure, of in zip(body.figures, rider, strict=True) if of == wanted)
        points = np.array([point for figure in figures for point in figure.points])
        parts.append(replace(body, figures=figures, points=points))
    return parts


def _sprite(
    rng: np.random.Generator, thing: Thing, body: Body | None, rows: int, step: float
) -> tuple[Floats, Floats, list[_Lamp]]:
    """Draws a face on black and on white, from which its transparency follows."""
    ratio = body.width / body.height if body else 0.5
    columns = max(8, round(rows * ratio))
    box = (_OUTSIDE, _OUTSIDE, _OUTSIDE + columns, _OUTSIDE + rows)
    marks = np.random.default_rng(int(rng.integers(1 << 31)))
    state = marks.bit_generator.state
    drawn, lamps = [], []
    for ground in (0, 255):
        picture = np.full((rows + 2 * _OUTSIDE, columns + 2 * _OUTSIDE, 3), ground, np.uint8)
        marks.bit_generator.state = state
        if body is None or thing.colours is None:
            _draw_clutter(marks, picture, thing, box)
        else:
            lamps = body.draw_body(picture, box, False, thing.colours, step)
        drawn.append(picture.astype(np.float32))
    alpha = 1 - np.clip(drawn[1][..., 0] - drawn[0][..., 0], 0, 255) / np.float32(255)
    return drawn[0], alpha, [(lamp.x, lamp.y, lamp.radius, lamp.tail) for lamp in lamps]


def _draw_clutter(
    rng: np.random.Generator, picture: Picture, thing: Thing, box: tuple[int, int, int, int]
) -> None:
    x0, y0, x1, y1 = box
    middle, wide, tall = (x0 + x1) // 2, x1 - x0, y1 - y0
    inks = rng.uniform(20, 230, (3, 1)) + rng.normal(0, 25, (3, 3))
    body, cargo, top = (tuple(ink) for ink in np.clip(inks, 5, 250).tolist())
    if thing.kind == "vegetation":
        for _ in range(40):
            u, v = rng.uniform(0.18, 0.82, 2)
            light = float(rng.uniform(0.6, 1.4))
            ink = tuple(min(255, light * part) for part in (62, 108, 70))
            cv2.circle(picture, (x0 + round(u * wide), y0 + round(v * tall)), max(1, tall // 6), ink, -1)
    elif thing.kind == "static":
        cv2.rectangle(picture, (x0, y0), (x1 - 1, y1 - 1), body, -1)
        cv2.rectangle(picture, (x0, y0), (x1 - 1, y0 + tall // 5), cargo, -1)
        cv2.line(picture, (middle, y0 + tall // 4), (middle, y1 - 2), cargo, max(1, wide // 12))
    else:
        cv2.rectangle(picture, (middle - wide // 14, y0), (middle + wide // 14, y1 - 1), INKS["steel"], -1)
        if thing.kind == "traffic sign":
            ink = [(40, 36, 200), (190, 90, 30), (60, 190, 235), (225, 225, 225)][int(rng.integers(4))]
            if rng.random() < 0.6:
                cv2.circle(picture, (middle, y0 + wide // 2), wide // 2 - 1, ink, -1, cv2.LINE_AA)
            else:
                cv2.rectangle(picture, (x0, y0), (x1 - 1, y0 + round(0.9 * wide)), ink, -1)
            cv2.circle(picture, (middle, y0 + wide // 2), max(1, wide // 4), top, -1, cv2.LINE_AA)


def _weather_surface(rng: np.random.Generator, thing: Thing, layer: _Layer) -> _Layer:
    """Returns the part with shades, reflections, dirt and lettering, and smeared if it moves."""
    (height, width), strength, colour = layer.alpha.shape, difficulty.DIRT, layer.colour
    if thing.kind in {"car", "truck", "bus"}:
        for x, y, w, h in rng.uniform((0, 0.1, 0.05, 0.05), (0.8, 0.7, 0.4, 0.4), (3, 4))[: rng.integers(4)]:
            ink = rng.uniform(20, 240, 3).astype(np.float32)
            rows, columns = (
                slice(round(y * height), round((y + h) * height)),
                slice(round(x * width), round((x + w) * width)),
            )
            lettered = 0.45 * colour[rows, columns] + 0.55 * ink * layer.alpha[rows, columns, None]
            colour[rows, columns] = lettered
    field = np.linspace(1 + strength / 2, 1 - strength / 2, height, dtype=np.float32)[:, None]
    for cells, part in ((int(rng.integers(2, 6)), 0.55), (24, 0.4)):
        grain = rng.normal(0, strength * part, (cells, cells)).astype(np.float32)
        field = field + cv2.resize(grain, (width, height), interpolation=cv2.INTER_LINEAR)
    colour = np.minimum(colour * np.maximum(field, 0.1)[..., None], 255 * layer.alpha[..., None])
    alpha = layer.alpha
    if thing.smeared:
        reach = max(2, round(_SMEAR * height))
        colour, alpha = cv2.blur(colour, (reach, 1)), cv2.blur(alpha, (reach, 1))
    return layer._replace(colour=colour, alpha=alpha)


def _paste(canvas: Floats, owner: NDArray[np.int16], layer: _Layer, corner: tuple[int, int], at: int) -> bool:
    """Draws a layer, and notes its number where it covers; returns whether any of it is in the picture."""
    height, width = owner.shape
    x, y = corner
    left, top = max(0, x), max(0, y)
    right, bottom = min(width, x + layer.alpha.shape[1]), min(height, y + layer.alpha.shape[0])
    if left >= right or top >= bottom:
        return False
    window = slice(top - y, bottom - y), slice(left - x, right - x)
    alpha = layer.alpha[window]
    part = canvas[top:bottom, left:right]
    part *= (1 - alpha)[..., None]
    part += layer.colour[window]
    owner[top:bottom, left:right][alpha > 0.5] = at
    return True


def _outline(
    solid: NDArray[np.bool_], corner: tuple[int, int], size: tuple[int, int]
) -> NDArray[np.float64] | None:
    """Returns corners around the largest piece of a shape in the picture, in parts of it; None if tiny."""
    x, y = corner
    left, top = max(0, -x), max(0, -y)
    inside = solid[top : size[1] - y, left : size[0] - x].astype(np.uint8)
    if not inside.any():
        return None
    # Twice as large and closed over spokes and legs; a pixel's outer edge is then an edge of the outline.
    large = np.pad(cv2.resize(inside, None, fx=2, fy=2, interpolation=cv2.INTER_NEAREST), 4)
    closed = cv2.morphologyEx(large, cv2.MORPH_CLOSE, np.ones((5, 5), np.uint8))
    found, _ = cv2.findContours(closed, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    points = cv2.approxPolyDP(max(found, key=cv2.contourArea), 0.8, True).reshape(-1, 2).astype(np.float64)
    if len(points) < 3:
        return None
    # Centres of the outer half pixels, moved to the edges of the shape.
    low, high = points.min(axis=0), points.max(axis=0)
    points = low + (points - low) * (high - low + 1) / np.maximum(high - low, 1) - 4
    return (points / 2 + (left + x, top + y)) / size
