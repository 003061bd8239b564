"""Draws frames with boxes to train a detector on: the rendered city, and its bodies on other backgrounds.

Frame i of a seed is always the same picture. City frames have the streets, traffic and light of the synthetic
city at a moment of their own. The others place the same bodies, from more angles, at all sizes before
backgrounds that show little but clutter, so that a model learns bodies and not streets.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, get_args

import cv2
import numpy as np
from numpy.typing import NDArray
from rendered_bodies import draw_body
from rendered_canvas import Canvas

from ekya.models.training.frames import FrameObjects, LabelledFrames
from ekya.streams.synthetic.bodies import Lamp
from ekya.streams.synthetic.scene import (
    KINDS,
    Clothing,
    Fleet,
    Lighting,
    Livery,
    StreetMoment,
    StreetScene,
    View,
)
from ekya.streams.synthetic.source import LightBox, levels_between
from ekya.streams.synthetic.street import BASE_HEIGHT, BASE_WIDTH, paint_street
from ekya.streams.synthetic.traffic import StreetTraffic

CITY_FRAMES = 0.35
"""Part of the frames that show the city as it is."""

_STREETS, _LIGHTS = 24, 4
_NOISE = 32.0
_HARD_TO_SEE = 0.5
"""An object of which less is visible is doubtful."""

_TINY = 0.015
"""An object with a side below this part of the frame's is doubtful."""

Picture = NDArray[np.uint8]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FrameStudio:
    """Draws frames; what is slow to paint is painted once.

    Attributes:
        seed: of all frames.
        side: of a frame, pixels.
        streets, lights: of the synthetic city, to choose from.
        noise: of a camera, (2 side, 2 side, 3) int16.
    """

    seed: int
    side: int
    streets: dict[View, list[Picture]]
    lights: list[LightBox]
    noise: NDArray[np.int16]

    @staticmethod
    def open(seed: int, side: int) -> "FrameStudio":
        """Paints the streets of a seed."""
        streets = {
            view: [paint_street(view, np.random.default_rng((seed, 1, at, n))) for n in range(_STREETS)]
            for at, view in enumerate(get_args(View))
        }
        lights = [LightBox(np.random.default_rng((seed, 2, n))) for n in range(_LIGHTS)]
        return FrameStudio(seed, side, streets, lights, _noise(seed, side))

    def of_side(self, side: int) -> "FrameStudio":
        """Returns a studio for frames of another side."""
        return replace(self, side=side, noise=_noise(self.seed, side))

    def frames(self, numbers: Sequence[int], hard: float = 1.0) -> LabelledFrames:
        """Returns the frames of these numbers; ``hard`` as in ``frame``."""
        drawn = [self.frame(number, hard) for number in numbers]
        at = np.array(numbers, np.int64)
        return LabelledFrames(
            np.stack([image for image, _ in drawn]), tuple(objects for _, objects in drawn), KINDS, at, at
        )

    def frame(self, number: int, hard: float = 1.0) -> tuple[Picture, FrameObjects]:
        """Returns one frame, (side, side, 3) uint8 RGB, and its objects.

        Args:
            number: of the frame.
            hard: in [0, 1]; 0 shows one or two large objects and little else, 1 also crowds, small objects
                and the city.
        """
        rng = np.random.default_rng((self.seed, 3, number))
        canvas = self._city(rng) if rng.random() < CITY_FRAMES * hard else self._placed(rng, hard)
        image = _seen(rng, canvas.picture, self.noise)
        objects = _objects(canvas)
        if rng.random() < 0.5:
            image, objects = np.ascontiguousarray(image[:, ::-1]), _mirrored(objects)
        return np.ascontiguousarray(image[:, :, ::-1]), objects

    def _street(self, rng: np.random.Generator, view: View) -> Picture:
        return self.streets[view][int(rng.integers(_STREETS))]

    def _city(self, rng: np.random.Generator) -> Canvas:
        """Draws a moment of the city; three in four frames show a part of it, enlarged."""
        scene = _any_scene(rng)
        moment = StreetMoment(
            scene, scene.model_copy(update={"lighting": _any(rng, get_args(Lighting))}), rng.random(), 0
        )
        traffic = StreetTraffic(rng)
        traffic.replace_actors(moment)
        canvas = Canvas.over(self._street(rng, scene.view).copy())
        lamps: list[Lamp] = []
        for actor in traffic:
            x0, _, x1, y1 = box = actor.box
            reach = (max(2, round((x1 - x0) * 0.5)), 2)
            cv2.ellipse(
                canvas.picture, (round((x0 + x1) / 2), round(y1) - 1), reach, 0, 0, 360, (66, 64, 62), -1
            )
            lamps += actor.body.draw_body(canvas.picture, box, actor.lane.mirrored, actor.colours, actor.step)
            canvas.take(KINDS.index(actor.kind), box)
        levels = levels_between(moment.before.lighting, moment.after.lighting, moment.part)
        self.lights[int(rng.integers(_LIGHTS))].light_picture(canvas.picture, levels, lamps, rng)
        part = 1.0 if rng.random() < 0.25 else float(rng.uniform(0.35, 1.0))
        width, height = part * BASE_WIDTH, part * BASE_HEIGHT * float(rng.uniform(0.8, 1.0))
        x, y = float(rng.uniform(0, BASE_WIDTH - width)), float(rng.uniform(0, BASE_HEIGHT - height))
        return canvas.cut((x, y, x + width, y + height), self.side)

    def _placed(self, rng: np.random.Generator, hard: float) -> Canvas:
        """Draws bodies before a background, the farther ones first."""
        canvas = Canvas.over(self._background(rng, hard))
        squeeze = float(rng.uniform(0.55, 1.0))
        pitch = math.radians(float(rng.choice([0.0, rng.uniform(0, 20), rng.uniform(10, 50)])))
        for height, x, y in _places(rng, hard):
            draw_body(rng, canvas, _any_scene(rng), height, (x, y), pitch, squeeze)
        for _ in range(int(rng.integers(0, 4)) if rng.random() < 0.3 else 0):
            _clutter(rng, canvas.picture, canvas.owner)
        return canvas

    def _background(self, rng: np.random.Generator, hard: float) -> Picture:
        side, kind = self.side, rng.random()
        if kind < 0.4:
            street = self._street(rng, _any(rng, get_args(View)))
            zoom = float(rng.uniform(1.0, 3.0)) * side / BASE_HEIGHT
            turn = cv2.getRotationMatrix2D(
                (float(rng.uniform(60, 260)), float(rng.uniform(40, 200))), float(rng.normal(0, 8)), zoom
            )
            turn[:, 2] += side / 2 - turn @ (BASE_WIDTH / 2, BASE_HEIGHT / 2, 1) + rng.normal(0, side / 8, 2)
            picture = cv2.warpAffine(street, turn, (side, side), borderMode=cv2.BORDER_REFLECT)
        else:
            picture = _cloth(rng, side)
            if kind < 0.85:
                edge = round(float(rng.uniform(0.15, 0.85)) * side)
                picture[edge:] = _cloth(rng, side)[edge:]
        for _ in range(int(rng.integers(0, 4 + round(24 * hard)))):
            _clutter(rng, picture, None)
        return picture


def _noise(seed: int, side: int) -> NDArray[np.int16]:
    drawn = np.random.default_rng((seed, 4)).normal(0, _NOISE, (2 * side, 2 * side, 3))
    return drawn.astype(np.int16)


def _any_scene(rng: np.random.Generator) -> StreetScene:
    return StreetScene(
        view=_any(rng, get_args(View)),
        lighting=_any(rng, get_args(Lighting)),
        livery=_any(rng, get_args(Livery)),
        clothing=_any(rng, get_args(Clothing)),
        fleet=_any(rng, get_args(Fleet)),
        scale=float(rng.uniform(0.7, 1.3)),
        density=float(rng.integers(1, 13)),
    )


def _any(rng: np.random.Generator, values: tuple[T, ...]) -> T:
    return values[int(rng.integers(len(values)))]


def _places(rng: np.random.Generator, hard: float) -> list[tuple[float, float, float]]:
    """Returns height, and x and y of the foot, of bodies, as fractions of the frame, in painting order.

    In half of the frames they stand on one ground, where the lower ones are near and large.
    """
    count = int(rng.integers(0, 3 + round(6 * hard)))
    least = 0.4 ** (1 - hard) * 0.05**hard
    x, y = rng.uniform(-0.02, 1.02, count), rng.uniform(0.15, 1.1, count)
    heights = np.exp(rng.uniform(math.log(least), math.log(0.95 if count < 4 else 0.5), count))
    if rng.random() < 0.5 * hard:
        horizon, slope = float(rng.uniform(-0.3, 0.4)), float(rng.uniform(0.3, 1.1))
        heights = np.clip(slope * (y - horizon), 0.04, 0.95) * rng.uniform(0.8, 1.2, count)
    else:
        y = np.maximum(y, rng.uniform(0.4, 1.0, count) * heights)
    order = np.argsort(y)
    return list(zip(heights[order].tolist(), x[order].tolist(), y[order].tolist(), strict=True))


def _cloth(rng: np.random.Generator, side: int) -> Picture:
    """Paints a ground of one colour that light and grain of several sizes vary."""
    strength = float(rng.uniform(2, 45))
    light = np.zeros((side, side), np.float32)
    for cells in (2, 5, 12, 40, side // 2):
        grain = rng.normal(0, 1, (cells, max(2, round(cells * float(rng.choice([1.0, 0.3, 3.0])))))).astype(
            np.float32
        )
        light += cv2.resize(grain, (side, side)) * float(rng.uniform(0, 1)) * strength / 2
    colour, tint = _colour(rng), rng.uniform(0.7, 1.3, 3)
    painted: Picture = np.clip(colour + light[..., None] * tint, 0, 255).astype(np.uint8)
    return painted


def _colour(rng: np.random.Generator) -> NDArray[np.float64]:
    """Returns BGR in 0..255; most are near to grey, as in pictures."""
    return np.clip(rng.uniform(15, 240) + rng.normal(0, rng.choice([8, 25, 70]), 3), 0, 255)


def _clutter(rng: np.random.Generator, picture: Picture, owner: NDArray[np.int16] | None) -> None:
    """Paints a shape that is no object; what it hides belongs to no object."""
    side = len(picture)
    x, y = rng.uniform(0, side, 2)
    size = side * math.exp(float(rng.uniform(math.log(0.015), math.log(0.35))))
    width, height = size * math.exp(float(rng.normal(0, 0.7))), size
    colour = tuple(_colour(rng).tolist())
    at, kind = (round(x), round(y)), int(rng.integers(6))
    targets = [(picture, colour)] if owner is None else [(picture, colour), (owner, -1)]
    angle, at_xy = float(rng.uniform(0, 180)), np.array([x, y])
    points = at_xy + rng.normal(0, size / 2, (int(rng.integers(3, 7)), 2))
    spots = at_xy + rng.normal(0, size / 2, (30, 2))
    thick = max(1, round(float(rng.uniform(0.004, 0.03)) * side))
    for target, ink in targets:
        if kind == 0:
            corner = (round(x + width), round(y + height))
            cv2.rectangle(target, at, corner, ink, -1 if angle < 120 else thick)
        elif kind == 1:
            cv2.ellipse(target, at, (round(width / 2) + 1, round(height / 2) + 1), angle, 0, 360, ink, -1)
        elif kind == 2:
            cv2.fillPoly(target, [points.round().astype(np.int32)], ink)
        elif kind == 3:
            reach = 3 * size
            end = (round(x + reach * math.cos(angle)), round(y + reach * math.sin(angle)))
            cv2.line(target, at, end, ink, thick)
        elif kind == 4:
            cv2.line(target, at, (round(x + rng.normal(0, 2)), round(y + 3 * height)), ink, 2 * thick)
        else:
            for spot in spots:
                light = float(np.clip(0.6 + 0.03 * abs(spot[0] - x), 0.6, 1.3))
                shade = tuple(light * part for part in ink) if target is picture else ink
                cv2.circle(target, (round(spot[0]), round(spot[1])), max(1, round(size / 12)), shade, -1)


def _seen(rng: np.random.Generator, picture: Picture, noise: NDArray[np.int16]) -> Picture:
    """Returns the picture as some camera takes it: its light, colours, sharpness, noise and compression.

    Args:
        rng: of what the camera is like.
        picture: (S, S, 3) uint8 BGR.
        noise: (2 S, 2 S, 3) of standard deviation ``_NOISE``, of which a part is added.
    """
    side = len(picture)
    if rng.random() < 0.5:
        picture = cv2.GaussianBlur(picture, (0, 0), float(rng.uniform(0.3, 1.5)))
    if rng.random() < 0.15:
        small = round(side * float(rng.uniform(0.4, 0.9)))
        picture = cv2.resize(cv2.resize(picture, (small, small)), (side, side))
    if rng.random() < 0.5:
        cells = rng.uniform(110, 230, (int(rng.integers(2, 6)),) * 2).astype(np.uint8)
        patches = cv2.resize(cells, (side, side), interpolation=cv2.INTER_CUBIC)
        picture = cv2.multiply(picture, cv2.merge([patches] * 3), scale=1 / 200)
    grey = cv2.cvtColor(cv2.cvtColor(picture, cv2.COLOR_BGR2GRAY), cv2.COLOR_GRAY2BGR)
    colour = float(rng.uniform(0.2, 1.3))
    picture = cv2.addWeighted(picture, colour, grey, 1.0 - colour, 0.0)
    curve = np.linspace(0, 1, 256)[:, None] ** math.exp(float(rng.normal(0, 0.3)))
    curve = curve * rng.uniform(0.75, 1.2) * rng.uniform(0.88, 1.12, 3) + rng.uniform(-0.06, 0.1)
    picture = cv2.LUT(picture, np.clip(255 * curve, 0, 255).astype(np.uint8)[None])
    if rng.random() < 0.6:
        y, x = rng.integers(0, side, 2).tolist()
        strength = float(rng.uniform(0, 0.05)) * 255 / _NOISE
        grain = noise[y : y + side, x : x + side]
        picture = cv2.addWeighted(picture, 1.0, grain, strength, 0.0, dtype=cv2.CV_8U)
    if rng.random() < 0.3:
        quality = [cv2.IMWRITE_JPEG_QUALITY, int(rng.integers(25, 85))]
        picture = cv2.imdecode(cv2.imencode(".jpg", picture, quality)[1], cv2.IMREAD_COLOR)
    return picture


def _objects(canvas: Canvas) -> FrameObjects:
    """Returns a canvas' objects; those that are small or mostly hidden are doubtful."""
    side = len(canvas.picture)
    boxes = canvas.boxes() / np.float32(side)
    clear = (canvas.visible() >= _HARD_TO_SEE) & (
        (boxes[:, 2:] - boxes[:, :2]).min(axis=1, initial=1) >= _TINY
    )
    seen = canvas.visible() > 0.02
    return FrameObjects(boxes[clear], canvas.classes()[clear], boxes[seen & ~clear])


def _mirrored(objects: FrameObjects) -> FrameObjects:
    return FrameObjects(_flip(objects.boxes), objects.classes, _flip(objects.doubtful))


def _flip(boxes: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.stack([1 - boxes[:, 2], boxes[:, 1], 1 - boxes[:, 0], boxes[:, 3]], axis=1)
