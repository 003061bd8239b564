"""Scenes of a street, the script by which they change (paper §2.3, Figure 2), and their colours.

Colours of vehicles (liveries) and clothes are BGR, as in OpenCV.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator

Kind = Literal["person", "car", "truck", "bus", "bicycle", "motorcycle"]
View = Literal["side", "front", "high"]
Lighting = Literal["day", "dusk", "rain", "night"]
Livery = Literal["north", "south", "harbour", "plain"]
Clothing = Literal["summer", "winter", "rainwear", "workwear"]
Fleet = Literal["city", "utility", "mixed"]

KINDS: tuple[Kind, ...] = ("person", "car", "truck", "bus", "bicycle", "motorcycle")
"""All kinds of objects, in the order of class indices."""


class StreetScene(BaseModel):
    """One condition of a street, which lasts until the next scene of the script begins.

    Attributes:
        at_s: stream time in seconds at which it begins.
        ramp_s: duration of the change from the scene before, seconds. 0 is a cut: the camera is turned or
            drives on, and other objects are in view immediately. Otherwise light changes gradually and new
            arrivals belong increasingly to this scene.
        mix: relative frequency of each kind; kinds that are not named do not occur.
        view: from the side, along the street (fronts and rears), or from high above.
        lighting: day, dusk (low sun, glare), rain (streaks, haze) or night (lamps, noise).
        livery: set of colours of each kind of vehicle.
        clothing: clothes of people.
        fleet: types of vehicles: ``city`` (sedans, box trucks, city buses, scooters), ``utility``
            (vans, flatbeds and tankers, double-deckers and coaches, heavy motorcycles) or ``mixed``.
        scale: size of all objects, relative to the normal 1.0.
        density: average number of objects in view.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    at_s: Annotated[float, Field(ge=0)] = 0.0
    ramp_s: Annotated[float, Field(ge=0)] = 0.0
    mix: dict[Kind, Annotated[float, Field(ge=0)]] = Field(default_factory=lambda: dict.fromkeys(KINDS, 1.0))
    view: View = "side"
    lighting: Lighting = "day"
    livery: Livery = "north"
    clothing: Clothing = "summer"
    fleet: Fleet = "mixed"
    scale: Annotated[float, Field(ge=0.7, le=1.3)] = 1.0
    density: Annotated[float, Field(ge=1, le=12)] = 6.0

    @field_validator("mix")
    @classmethod
    def _has_a_weight(cls, mix: Mapping[Kind, float]) -> Mapping[Kind, float]:
        if sum(mix.values()) <= 0:
            raise ValueError("at least one kind needs a weight above 0")
        return mix

    def draw_kind(self, rng: np.random.Generator) -> Kind:
        """Samples a kind with the frequencies of ``mix``."""
        weights = np.array([self.mix.get(kind, 0.0) for kind in KINDS])
        return KINDS[int(rng.choice(len(KINDS), p=weights / weights.sum()))]


@dataclass(frozen=True, slots=True)
class StreetMoment:
    """State of a script: the previous scene, the current one, and the progress of the change.

    Attributes:
        before, after: the two scenes; the same one when nothing changes.
        part: progress of the change, in [0, 1].
        index: number of the scene ``after`` in the script.
    """

    before: StreetScene
    after: StreetScene
    part: float
    index: int

    @property
    def main(self) -> StreetScene:
        """Scene with the larger part, which decides what cannot be blended (the view)."""
        return self.after if self.part >= 0.5 else self.before

    @property
    def density(self) -> float:
        """Number of objects in view, interpolated."""
        return (1.0 - self.part) * self.before.density + self.part * self.after.density

    def draw_scene(self, rng: np.random.Generator) -> StreetScene:
        """Samples the scene that a new arrival belongs to, in the current view."""
        drawn = self.after if rng.random() < self.part else self.before
        if drawn.view == self.main.view:
            return drawn
        return drawn.model_copy(update={"view": self.main.view})


def moment_at(scenes: tuple[StreetScene, ...], t_s: float) -> StreetMoment:
    """Returns the state of a script (scenes with rising ``at_s``, the first at 0) at stream time ``t_s``."""
    index = max(number for number, scene in enumerate(scenes) if scene.at_s <= t_s)
    after = scenes[index]
    if index == 0 or after.ramp_s == 0.0:
        return StreetMoment(after, after, 1.0, index)
    return StreetMoment(scenes[index - 1], after, min(1.0, (t_s - after.at_s) / after.ramp_s), index)


Colour = tuple[int, int, int]

_WHITE, _CREAM, _SILVER = (236, 236, 234), (190, 222, 232), (178, 174, 170)
_GREY, _SLATE, _BLACK = (118, 114, 110), (84, 74, 66), (44, 42, 40)
_RED, _MAROON, _ORANGE, _YELLOW = (44, 40, 196), (46, 34, 116), (36, 118, 232), (52, 196, 238)
_BLUE, _NAVY, _TEAL, _SKY = (176, 92, 36), (96, 52, 26), (134, 132, 36), (214, 168, 96)
_GREEN, _OLIVE, _BEIGE, _PINK = (76, 130, 46), (62, 98, 92), (150, 184, 206), (170, 130, 226)
_LIME, _SKIN, _TAN, _BROWN = (60, 236, 204), (140, 172, 218), (92, 128, 182), (52, 78, 112)

# Each livery ties colour to kind differently, so a model trained on one of them learns to go by colour and
# fails on the next.
_VEHICLES: Mapping[Livery, Mapping[Kind, tuple[Colour, ...]]] = {
    "north": {
        "car": (_BLUE, _NAVY, _SILVER, _GREY, _SKY),
        "truck": (_WHITE, _CREAM, _SILVER),
        "bus": (_RED, _MAROON),
        "bicycle": (_GREEN, _TEAL),
        "motorcycle": (_BLACK, _SLATE),
    },
    "south": {
        "car": (_RED, _MAROON, _ORANGE, _WHITE),
        "truck": (_BLUE, _NAVY, _TEAL),
        "bus": (_WHITE, _CREAM, _SILVER),
        "bicycle": (_BLACK, _GREY),
        "motorcycle": (_RED, _GREEN),
    },
    "harbour": {
        "car": (_WHITE, _CREAM, _BEIGE, _YELLOW),
        "truck": (_RED, _ORANGE, _MAROON),
        "bus": (_BLUE, _TEAL, _SKY),
        "bicycle": (_RED, _ORANGE),
        "motorcycle": (_WHITE, _YELLOW),
    },
    "plain": {
        "car": (_BLACK, _SLATE, _GREY, _OLIVE),
        "truck": (_GREY, _OLIVE, _SLATE, _GREEN),
        "bus": (_YELLOW, _ORANGE, _GREEN),
        "bicycle": (_SILVER, _WHITE),
        "motorcycle": (_NAVY, _BLUE),
    },
}

_TOPS: Mapping[Clothing, tuple[Colour, ...]] = {
    "summer": (_WHITE, _PINK, _SKY, _YELLOW, _RED),
    "winter": (_BLACK, _NAVY, _BROWN, _SLATE, _MAROON),
    "rainwear": (_YELLOW, _TEAL, _BLUE, _OLIVE, _RED),
    "workwear": (_ORANGE, _LIME),
}
_LEGS: Mapping[Clothing, tuple[Colour, ...]] = {
    "summer": (_SKIN, _TAN, _BEIGE, _BLUE),
    "winter": (_BLACK, _SLATE, _BROWN),
    "rainwear": (_NAVY, _SLATE, _GREY),
    "workwear": (_NAVY, _ORANGE, _SLATE),
}
_SKINS: tuple[Colour, ...] = ((150, 184, 230), (110, 148, 200), (72, 102, 150), (48, 68, 104))
_CARGO: tuple[Colour, ...] = (_WHITE, _SILVER, _CREAM, _GREY, _BEIGE)

INKS: Mapping[str, Colour] = {
    "glass": (74, 60, 48),
    "tyre": (34, 33, 32),
    "steel": (150, 148, 146),
    "dark": (58, 54, 52),
    "lamp": (220, 244, 252),
    "tail": (40, 36, 210),
    "amber": (60, 176, 244),
    "planks": (90, 130, 160),
}
"""Colours that all actors share, by their names in ``bodies.txt``."""


class Colours(NamedTuple):
    """Colours of one actor: vehicle, cargo and person."""

    body: Colour
    cargo: Colour
    top: Colour
    legs: Colour
    skin: Colour


def draw_colours(rng: np.random.Generator, kind: Kind, livery: Livery, clothing: Clothing) -> Colours:
    """Samples colours for one actor, each with a small deviation from the palette."""
    bodies = _VEHICLES[livery].get(kind, (_GREY,))
    # Half of the trucks have cargo in the cab's colours, so cargo colour alone does not identify a truck.
    cargo = bodies if rng.random() < 0.5 else _CARGO
    return Colours(
        _near(rng, bodies), _near(rng, cargo), _near(rng, _TOPS[clothing]),
        _near(rng, _LEGS[clothing]), _near(rng, _SKINS),
    )  # fmt: skip


def shade(colour: Colour, factor: float) -> Colour:
    """Returns the colour, darker for a factor below 1 and lighter above."""
    return (
        min(255, round(colour[0] * factor)),
        min(255, round(colour[1] * factor)),
        min(255, round(colour[2] * factor)),
    )


def _near(rng: np.random.Generator, colours: tuple[Colour, ...]) -> Colour:
    colour = np.array(colours[int(rng.integers(len(colours)))], np.float64)
    jittered = np.clip(colour * rng.uniform(0.88, 1.1) + rng.normal(0.0, 7.0, 3), 12, 250)
    return (int(jittered[0]), int(jittered[1]), int(jittered[2]))
