"""Synthetic city as a camera: frames with exact ground truth, rendered by day, and lit as the script says."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import count, pairwise
from typing import Annotated, ClassVar, Literal

import cv2
import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, field_validator

from ekya.core.errors import UserError
from ekya.core.units import US_PER_S
from ekya.streams.ingest.frame import Frame, StreamSource, Truth, number_known_classes
from ekya.streams.synthetic.bodies import Lamp
from ekya.streams.synthetic.scene import KINDS, Kind, Lighting, StreetMoment, StreetScene, View, moment_at
from ekya.streams.synthetic.street import BASE_HEIGHT, BASE_WIDTH, paint_street
from ekya.streams.synthetic.traffic import Actor, StreetTraffic


@dataclass(frozen=True, slots=True)
class Levels:
    """Strength of each effect; a change of light interpolates each value linearly.

    Attributes:
        blue, green, red: gain of each channel.
        haze: part of grey that is mixed in, in [0, 1].
        pools: extra gain under street lamps.
        noise: standard deviation of the sensor's noise, in grey levels.
        glare: brightness of a low sun, in [0, 1].
        rain: strength of streaks, in [0, 1].
        lamps: strength of vehicles' lights, in [0, 1].
    """

    blue: float
    green: float
    red: float
    haze: float
    pools: float
    noise: float
    glare: float
    rain: float
    lamps: float


_LEVELS: Mapping[Lighting, Levels] = {
    "day": Levels(1.0, 1.0, 1.0, 0.0, 0.0, 2.5, 0.0, 0.0, 0.0),
    "dusk": Levels(0.50, 0.60, 0.80, 0.06, 0.05, 5.0, 0.75, 0.0, 0.45),
    "rain": Levels(0.66, 0.62, 0.58, 0.26, 0.0, 6.0, 0.0, 1.0, 0.4),
    "night": Levels(0.34, 0.27, 0.24, 0.02, 0.34, 9.0, 0.0, 0.0, 1.0),
}

_HAZE_GREY = 150.0
_GLOW_SIDE = 33


def levels_between(before: Lighting, after: Lighting, part: float) -> Levels:
    """Interpolates between two conditions; ``part`` in [0, 1] is 0 at ``before``."""
    pairs = zip(astuple(_LEVELS[before]), astuple(_LEVELS[after]), strict=True)
    return Levels(*((1.0 - part) * a + part * b for a, b in pairs))


class LightBox:
    """Lights finished pictures. Everything constant over frames is made once, from a seeded generator."""

    def __init__(self, rng: np.random.Generator) -> None:
        noise = rng.normal(0.0, 32.0, (BASE_HEIGHT * 2, BASE_WIDTH * 2, 3))
        self._noise = np.clip(noise, -127, 127).astype(np.int16)
        self._streaks = _paint_streaks(rng)
        self._pools = _pool_map(rng)
        self._glare = _glare_map(rng)
        self._head = _glow((210, 240, 255))
        self._tail = _glow((40, 40, 235))
        self._levels: Levels | None = None
        self._gain = np.zeros((BASE_HEIGHT, BASE_WIDTH, 3), np.uint8)
        self._veil = np.zeros((BASE_HEIGHT, BASE_WIDTH, 3), np.uint8)

    def light_picture(
        self, picture: NDArray[np.uint8], levels: Levels, lamps: Sequence[Lamp], rng: np.random.Generator
    ) -> None:
        """Lights ``picture``, (240, 320, 3) uint8 BGR, in place; ``rng`` is the generator of this frame."""
        self._prepare(levels)
        cv2.multiply(picture, self._gain, dst=picture, scale=1.0 / 160.0)
        cv2.add(picture, self._veil, dst=picture)
        if levels.lamps > 0.02:
            for lamp in lamps:
                self._shine(picture, lamp, levels.lamps)
        if levels.rain > 0.02:
            dy, dx = int(rng.integers(BASE_HEIGHT)), int(rng.integers(BASE_WIDTH))
            drops = self._streaks[dy : dy + BASE_HEIGHT, dx : dx + BASE_WIDTH]
            cv2.addWeighted(picture, 1.0, drops, levels.rain, 0.0, dst=picture)
        dy, dx = int(rng.integers(BASE_HEIGHT)), int(rng.integers(BASE_WIDTH))
        noise = self._noise[dy : dy + BASE_HEIGHT, dx : dx + BASE_WIDTH]
        cv2.addWeighted(picture, 1.0, noise, levels.noise / 32.0, 0.0, dst=picture, dtype=cv2.CV_8U)

    def _prepare(self, levels: Levels) -> None:
        """Computes gain (160 is 1.0) and veil of light as pictures; only when the light has changed."""
        if levels == self._levels:
            return
        self._levels = levels
        colour = np.array([levels.blue, levels.green, levels.red], np.float32)
        warm = np.array([0.7, 0.95, 1.1], np.float32)
        gain = (colour + levels.pools * self._pools[..., None] * warm) * (1.0 - levels.haze)
        self._gain = np.clip(gain * 160.0, 0, 255).astype(np.uint8)
        sun = np.array([110.0, 190.0, 255.0], np.float32)
        veil = levels.haze * _HAZE_GREY + levels.glare * 0.62 * self._glare[..., None] * sun
        self._veil = np.clip(np.broadcast_to(veil, gain.shape), 0, 255).astype(np.uint8)

    def _shine(self, picture: NDArray[np.uint8], lamp: Lamp, strength: float) -> None:
        side = min(_GLOW_SIDE, max(5, 2 * round(lamp.radius * 2.2) + 1))
        x0, y0 = round(lamp.x) - side // 2, round(lamp.y) - side // 2
        left, top = max(0, x0), max(0, y0)
        right, bottom = min(BASE_WIDTH, x0 + side), min(BASE_HEIGHT, y0 + side)
        if left >= right or top >= bottom:
            return
        glow = cv2.resize(self._tail if lamp.tail else self._head, (side, side), interpolation=cv2.INTER_AREA)
        spot = picture[top:bottom, left:right]
        cv2.addWeighted(
            spot, 1.0, glow[top - y0 : bottom - y0, left - x0 : right - x0], strength, 0.0, dst=spot
        )


def _glow(colour: tuple[int, int, int]) -> NDArray[np.uint8]:
    axis = np.linspace(-1.0, 1.0, _GLOW_SIDE)
    distance = np.hypot(axis[:, None], axis[None, :])
    falloff = np.clip(1.0 - distance, 0.0, 1.0) ** 1.6
    glow: NDArray[np.uint8] = np.clip(1.25 * falloff[..., None] * np.array(colour), 0, 255).astype(np.uint8)
    return glow


def _paint_streaks(rng: np.random.Generator) -> NDArray[np.uint8]:
    layer = np.zeros((BASE_HEIGHT * 2, BASE_WIDTH * 2, 3), np.uint8)
    for _ in range(900):
        x, y = int(rng.integers(BASE_WIDTH * 2)), int(rng.integers(BASE_HEIGHT * 2))
        length = int(rng.integers(6, 15))
        grey = int(rng.integers(24, 70))
        cv2.line(layer, (x, y), (x - length // 4, y + length), (grey, grey, grey), 1, cv2.LINE_AA)
    return layer


def _pool_map(rng: np.random.Generator) -> NDArray[np.float32]:
    ys, xs = np.mgrid[0:BASE_HEIGHT, 0:BASE_WIDTH].astype(np.float32)
    pools = np.zeros((BASE_HEIGHT, BASE_WIDTH), np.float32)
    start = float(rng.uniform(20, 80))
    for x in (start, start + 105, start + 210):
        for y in (130.0, 225.0):
            pools += np.exp(-(((xs - x) / 46.0) ** 2) - ((ys - y) / 44.0) ** 2)
    return np.minimum(pools, 1.0)


def _glare_map(rng: np.random.Generator) -> NDArray[np.float32]:
    ys, xs = np.mgrid[0:BASE_HEIGHT, 0:BASE_WIDTH].astype(np.float32)
    x, y = float(rng.uniform(40, 280)), float(rng.uniform(10, 60))
    distance = np.hypot(xs - x, ys - y)
    glare: NDArray[np.float32] = (np.exp(-distance / 80.0) + 0.12).astype(np.float32)
    return glare


_VISIBLE = 0.5
_VIEW_SEEDS: dict[View, int] = {"side": 0, "front": 1, "high": 2}


class CitySpec(BaseModel):
    """A synthetic camera in a fleet file.

    Attributes:
        seed: seed of all random choices; the same seed gives the same pixels.
        fps: frames a second of stream time.
        scenes: the script, with rising ``at_s``, the first at 0.
        width, height: of the frames, in pixels.
        duration_s: stream seconds until it ends; None is an endless stream.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    gives_truth: ClassVar[bool] = True
    live: ClassVar[bool] = False

    kind: Literal["synthetic_city"] = "synthetic_city"
    seed: Annotated[int, Field(ge=0)]
    fps: Annotated[float, Field(gt=0, le=60)] = 10.0
    scenes: Annotated[tuple[StreetScene, ...], Field(min_length=1)] = (StreetScene(),)
    width: Annotated[int, Field(ge=64)] = BASE_WIDTH
    height: Annotated[int, Field(ge=48)] = BASE_HEIGHT
    duration_s: Annotated[float, Field(gt=0)] | None = None

    @field_validator("scenes")
    @classmethod
    def _in_order(cls, scenes: tuple[StreetScene, ...]) -> tuple[StreetScene, ...]:
        starts = [scene.at_s for scene in scenes]
        if starts[0] != 0.0 or any(b <= a for a, b in pairwise(starts)):
            raise ValueError("at_s must rise from scene to scene, and be 0 in the first")
        return scenes

    def open(self, classes: tuple[str, ...]) -> StreamSource:
        """Opens the camera for a fleet with these classes.

        Raises:
            UserError: the city does not have one of the classes, or shows a kind that is not among them.
        """
        class_of = number_known_classes(classes, KINDS, "the synthetic city has")
        for number, scene in enumerate(self.scenes):
            for kind, weight in scene.mix.items():
                if weight > 0 and kind not in class_of:
                    raise UserError(
                        f"source.scenes[{number}].mix: {kind!r} is not among the fleet's classes; "
                        "add it to classes or set its weight to 0"
                    )
        return _City(self, self.fps, {kind: class_of[kind] for kind in KINDS if kind in class_of})


@dataclass(frozen=True, slots=True)
class _City:
    """A ``StreamSource`` that renders its script from the start at every pass."""

    spec: CitySpec
    fps: float
    class_of: Mapping[Kind, int]
    damaged: int = 0

    def frames(self) -> Iterator[tuple[Frame, Truth | None]]:
        """Yields all frames with their truth."""
        spec = self.spec
        # Each part has a generator, so that draws for one do not change the others.
        traffic = StreetTraffic(np.random.default_rng([spec.seed, 1]))
        lights = LightBox(np.random.default_rng([spec.seed, 2]))
        streets: dict[View, NDArray[np.uint8]] = {}
        shown: StreetMoment | None = None
        across, down = spec.width / BASE_WIDTH, spec.height / BASE_HEIGHT
        for index in count():
            if spec.duration_s is not None and index >= round(spec.duration_s * spec.fps):
                return
            moment = moment_at(spec.scenes, index / spec.fps)
            if shown is None or _is_cut(shown, moment):
                traffic.replace_actors(moment)
            else:
                traffic.move_actors(moment, 1.0 / spec.fps)
            shown = moment
            view = moment.main.view
            if view not in streets:
                streets[view] = paint_street(view, np.random.default_rng([spec.seed, 3, _VIEW_SEEDS[view]]))
            picture = streets[view].copy()
            actors = list(traffic)
            lamps = [lamp for actor in actors for lamp in _paint(picture, actor)]
            levels = levels_between(moment.before.lighting, moment.after.lighting, moment.part)
            # Seeded by the frame: rain draws more numbers than other light.
            lights.light_picture(picture, levels, lamps, np.random.default_rng([spec.seed, 4, index]))
            if (across, down) != (1.0, 1.0):
                resized = np.empty((spec.height, spec.width, 3), np.uint8)
                cv2.resize(picture, (spec.width, spec.height), resized, 0, 0, cv2.INTER_LINEAR)
                picture = resized
            seen = list(_visible(actors))
            boxes = np.array([box for _, box in seen], np.float32).reshape(-1, 4)
            boxes *= np.array([across, down, across, down], np.float32)
            truth = Truth(
                boxes,
                np.array([self.class_of[actor.kind] for actor, _ in seen], np.int64),
                np.array([actor.track for actor, _ in seen], np.int64),
            )
            # A copy, so that nothing that is done to the frame changes its truth.
            yield Frame(index, round(index * US_PER_S / spec.fps), picture, boxes.copy()), truth


def _paint(picture: NDArray[np.uint8], actor: Actor) -> list[Lamp]:
    """Draws an actor and its shadow; returns its lamps."""
    box = x0, _, x1, y1 = actor.box
    shadow = (round((x0 + x1) / 2), round(y1) - 1)
    reach = (max(2, round((x1 - x0) * 0.5)), 2)
    cv2.ellipse(picture, shadow, reach, 0, 0, 360, (66, 64, 62), -1, cv2.LINE_AA)
    return actor.body.draw_body(picture, box, actor.lane.mirrored, actor.colours, actor.step)


_Box = tuple[float, float, float, float]


def _visible(actors: list[Actor]) -> Iterator[tuple[Actor, _Box]]:
    """Yields the actors that are at least half visible, with their boxes; later ones hide earlier ones."""
    found = []
    # Front actor at each pixel.
    owner = np.full((BASE_HEIGHT, BASE_WIDTH), -1, np.int16)
    for number, actor in enumerate(actors):
        box = _inside(actor.box)
        x0, y0, x1, y1 = map(round, box)
        place = slice(y0, y1), slice(x0, x1)
        owner[place] = number
        found.append((actor, box, place))
    for number, (actor, box, place) in enumerate(found):
        mine = np.count_nonzero(owner[place] == number)
        large = min(box[2] - box[0], box[3] - box[1]) >= 2.0
        # Compared with the whole object, so that parts outside the picture count as hidden.
        if large and mine >= _VISIBLE * actor.size[0] * actor.size[1]:
            yield actor, box


def _is_cut(before: StreetMoment, now: StreetMoment) -> bool:
    """Returns whether the picture is cut: a scene without a ramp began, or the view changed."""
    begins = now.index != before.index and now.before is now.after
    return begins or now.main.view != before.main.view


def _inside(box: _Box) -> _Box:
    x0, y0, x1, y1 = box
    return max(0.0, x0), max(0.0, y0), min(float(BASE_WIDTH), x1), min(float(BASE_HEIGHT), y1)
