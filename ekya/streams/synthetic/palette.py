"""Colours of vehicles (liveries) and clothes. BGR, as in OpenCV."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ekya.streams.synthetic.scene import Clothing, Kind, Livery

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
