"""Contents of a rendered city: its style, the sections that it drifts through, and what stands where."""

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import get_args

import cv2
import difficulty
import numpy as np

from ekya.streams.synthetic.bodies import draw_model
from ekya.streams.synthetic.scene import (
    KINDS,
    Clothing,
    Colours,
    Fleet,
    Kind,
    Lighting,
    Livery,
    StreetScene,
    View,
    draw_colours,
)

CLUTTER = ("pole", "traffic sign", "vegetation", "static")
"""What stands in front of objects, by its label in Cityscapes."""

_STATURE: Mapping[str, float] = {
    "person": 1.0, "car": 0.88, "truck": 1.45, "bus": 1.6, "bicycle": 1.0, "motorcycle": 0.95,
    "pole": 2.6, "traffic sign": 1.5, "vegetation": 0.9, "static": 0.6,
}  # fmt: skip
"""Height, as a multiple of a person's at the same place."""

_WEIGHTS = {"front": 0.55, "side": 0.45, "day": 0.5, "dusk": 0.18, "rain": 0.18, "night": 0.14}
"""Of lights, and of the views that a car has; all other properties are as frequent as each other."""

_ANY_YAW_IN_VIEW: Mapping[View, float] = {"front": 0.5, "side": 0.3}


@dataclass(frozen=True, slots=True)
class Section:
    """A while of a city whose appearance does not change.

    Attributes:
        seed: of its streets, and of everything in it.
        scene: view, light, livery, clothing, fleet, mix and density.
        hue: shift of the hue of all paint and cloth, degrees.
        horizon, eye: height of the horizon, and of the camera as a part of a person's; parts of the picture.
        blur, noise: of the camera.
        gamma, gains: its tone curve, and the gain of each channel, BGR.
    """

    seed: tuple[int, ...]
    scene: StreetScene
    hue: float
    horizon: float
    eye: float
    blur: float
    noise: float
    gamma: float
    gains: tuple[float, float, float]


def draw_section(seed: int, city: str, number: int, wanted: Mapping[str, object] | None = None) -> Section:
    """Returns a section of a city.

    Args:
        seed: of the data set.
        city: its name, which decides its style.
        number: of the section.
        wanted: values of the scene that are given.
    """
    key = (seed, zlib.crc32(city.encode()))
    of_city, rng = np.random.default_rng((*key, 0)), np.random.default_rng((*key, 1, number))
    scene = {name: _style(of_city, rng, name) for name in ("view", "lighting", "livery", "clothing", "fleet")}
    density, hue, horizon = (
        of_city.uniform(*difficulty.DENSITY),
        of_city.uniform(-1, 1),
        of_city.uniform(0.3, 0.42),
    )
    camera = [of_city.uniform(*span) for span in (difficulty.BLUR_SIGMA, difficulty.NOISE)]
    tone = (np.exp(of_city.normal(0, 0.18)), *of_city.uniform(0.88, 1.12, 3))
    likes = of_city.dirichlet(np.full(len(KINDS), difficulty.MIX_EVENNESS))
    mix = np.maximum(rng.dirichlet(0.5 + len(KINDS) * difficulty.MIX_EVENNESS * likes), difficulty.LEAST_MIX)
    scene |= {"mix": dict(zip(KINDS, mix.tolist(), strict=True))}
    scene |= {"density": float(np.clip(density * rng.uniform(0.7, 1.4), 3, 12))}
    return Section(
        seed=(*key, 2, number),
        scene=StreetScene.model_validate(scene | dict(wanted or {})),
        hue=difficulty.HUE_DEGREES * (hue + rng.uniform(-1, 1) / 3),
        horizon=float(horizon + rng.uniform(-0.03, 0.03)),
        eye=float(rng.uniform(0.75, 1.05)),
        blur=camera[0],
        noise=camera[1],
        gamma=float(tone[0]),
        gains=(float(tone[1]), float(tone[2]), float(tone[3])),
    )


def section_ends(seed: int, city: str, pictures: int) -> list[int]:
    """Returns the number of the first picture after each section of a city."""
    rng = np.random.default_rng((seed, zlib.crc32(city.encode()), 3))
    ends = [0]
    while ends[-1] < pictures:
        ends.append(ends[-1] + int(rng.integers(*difficulty.PICTURES_A_SECTION)))
    return ends[1:]


@dataclass(frozen=True, slots=True)
class Thing:
    """An object or a part of the street's furniture, as a whole and from its arrival on.

    Attributes:
        seed: of its texture.
        kind, label: what it is, and what its label says it is.
        model, colours: of its body; furniture has none.
        view: angle that its body is drawn from.
        yaw: 0 shows one face, above it a second is seen, to pi / 2; for cars, trucks and buses.
        approaching, mirrored, ridden, smeared: as they say.
        stature: height, as a multiple of a person's at its place.
        stretch: width, as a multiple of its body's.
        height: a person's at its place at time 0, as a part of the picture's height.
        x: of its foot at time 0, as a part of the picture's width.
        grows: change of the logarithm of ``height`` a second.
        drifts: change of ``x`` a second, as a multiple of ``height``.
    """

    seed: int
    kind: str
    label: str
    stature: float
    height: float
    x: float
    grows: float
    drifts: float = 0.0
    model: str = ""
    colours: Colours | None = None
    view: View = "side"
    yaw: float = 0.0
    approaching: bool = False
    mirrored: bool = False
    ridden: bool = False
    smeared: bool = False
    stretch: float = 1.0

    def at(self, t_s: float) -> "Thing":
        """Returns it ``t_s`` seconds later."""
        scale = math.exp(self.grows * t_s)
        x = 0.5 + (self.x - 0.5) * scale + self.drifts * t_s * self.height * scale
        return replace(self, height=self.height * scale, x=x)


def draw_things(
    rng: np.random.Generator, section: Section, span_s: float = 0.0, signs: float = 0.0
) -> list[Thing]:
    """Returns what is in view at some time of a span.

    Args:
        rng: of what there is.
        section: where it is.
        span_s: seconds from the first picture to the last; things arrive and leave over it.
        signs: additional traffic signs for each object.
    """
    count = rng.poisson(section.scene.density * (1 + span_s / 8)) + 1
    things = [_draw_object(rng, section) for _ in range(count)]
    for part, kinds in ((difficulty.PARTS_IN_FRONT, CLUTTER), (signs, ("traffic sign",))):
        for _ in range(rng.binomial(count, part)):
            things.append(_draw_clutter(rng, kinds[int(rng.integers(len(kinds)))]))
    # Each was drawn for a moment of the span.
    if span_s:
        things = [thing.at(-float(rng.uniform(0, span_s))) for thing in things]
    return things


def _draw_object(rng: np.random.Generator, section: Section) -> Thing:
    scene = section.scene
    kind = scene.draw_kind(rng)
    painted: Kind = kind if rng.random() >= difficulty.LOOK_ALIKES else KINDS[int(rng.integers(len(KINDS)))]
    colours = _shift_hue(draw_colours(rng, painted, scene.livery, scene.clothing), section.hue)
    view = scene.view
    if rng.random() < 0.3:
        view = "side" if view == "front" else "front"
    solid = kind in {"car", "truck", "bus"} and rng.random() < _ANY_YAW_IN_VIEW[scene.view]
    largest = difficulty.LARGEST * min(1.0, 1.1 / _STATURE[kind])
    height = math.exp(rng.uniform(math.log(difficulty.SMALLEST), math.log(largest)))
    label: str = kind
    if rng.random() < difficulty.WRONG_LABELS:
        label = str(rng.choice([other for other in KINDS if other != kind]))
    return Thing(
        seed=int(rng.integers(1 << 31)),
        kind=kind,
        label=label,
        model=draw_model(rng, kind, scene.fleet, scene.clothing == "rainwear"),
        colours=colours,
        view=view,
        yaw=float(rng.uniform(0.35, 1.2)) if solid else 0.0,
        approaching=bool(rng.random() < 0.5),
        mirrored=bool(rng.random() < 0.5),
        ridden=bool(rng.random() >= difficulty.PARKED),
        smeared=bool(rng.random() < difficulty.MOVING),
        stature=_STATURE[kind] * math.exp(rng.normal(0, 0.11)),
        stretch=math.exp(rng.normal(0, 0.1)),
        height=height,
        x=float(rng.uniform(-0.02, 1.02)),
        grows=float(rng.normal(0, 0.12)),
        drifts=float(rng.normal(0, 0.25)),
    )


def _draw_clutter(rng: np.random.Generator, kind: str) -> Thing:
    return Thing(
        seed=int(rng.integers(1 << 31)),
        kind=kind,
        label=kind,
        stature=_STATURE[kind] * math.exp(rng.normal(0, 0.2)),
        height=math.exp(rng.uniform(math.log(1.3 * difficulty.SMALLEST), math.log(difficulty.LARGEST))),
        x=float(rng.uniform(0, 1)),
        grows=float(rng.uniform(0, 0.15)),
    )


def _style(of_city: np.random.Generator, rng: np.random.Generator, name: str) -> str:
    """Returns the city's own value of a scene's property, or any of its values."""
    values: Mapping[str, tuple[str, ...]] = {
        "view": tuple(_ANY_YAW_IN_VIEW), "lighting": get_args(Lighting), "livery": get_args(Livery),
        "clothing": get_args(Clothing), "fleet": get_args(Fleet),
    }  # fmt: skip
    parts = np.array([_WEIGHTS.get(value, 1.0) for value in values[name]])
    own, other = (str(draw.choice(values[name], p=parts / parts.sum())) for draw in (of_city, rng))
    return own if rng.random() < difficulty.KEEPS_CITY else other


def _shift_hue(colours: Colours, degrees: float) -> Colours:
    """Returns the colours in another hue, except that of skin."""
    painted = np.array([colours[:4]], np.uint8)
    hsv = cv2.cvtColor(painted, cv2.COLOR_BGR2HSV)
    hsv[..., 0] = (hsv[..., 0].astype(int) + round(degrees / 2)) % 180
    body, cargo, top, legs = map(tuple, cv2.cvtColor(hsv, cv2.COLOR_HSV2BGR)[0].tolist())
    return Colours(body, cargo, top, legs, colours.skin)
