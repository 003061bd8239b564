"""Bodies of people and vehicles: draws what ``bodies.txt`` describes, from each camera angle."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from ekya.streams.synthetic.scene import INKS, Colours, Fleet, Kind, View, shade

_MODELS: Mapping[Kind, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "person": (("person",), ("person",)),
    "car": (("sedan", "hatch"), ("van", "van", "hatch")),
    "truck": (("box truck",), ("flatbed", "tanker")),
    "bus": (("city bus",), ("double-decker", "coach")),
    "bicycle": (("bike",), ("cargo bike",)),
    "motorcycle": (("scooter",), ("tourer",)),
}
"""Bodies of each kind in the fleets ``city`` and ``utility``; twice named, twice as frequent."""

_UMBRELLAS = 0.6
"""Part of the people who carry an umbrella in rainwear."""

_HUB = 0.45
"""Radius of a wheel's hub, as a part of the wheel's."""

# Positions have a resolution of a sixteenth of a pixel, so that slow objects move smoothly.
_SHIFT = 4
_FINE = 1 << _SHIFT

_Point = tuple[float, float, float, float]


class Lamp(NamedTuple):
    """A light that shines in the dark; position and radius in pixels; red if ``tail``, else white."""

    x: float
    y: float
    radius: float
    tail: bool


class _Figure(NamedTuple):
    """One figure of a body.

    Attributes:
        kind: polygon, line, disc, ring, oval or lamp.
        colour: name of an ink, of a field of ``Colours``, or of a lamp.
        factor: shade of the colour.
        sizes: sizes in the order of ``bodies.txt``.
        points: rows u, v, and their shift at the end of a stride.
    """

    kind: str
    colour: str
    factor: float
    sizes: tuple[float, ...]
    points: list[_Point]


@dataclass(frozen=True, slots=True, eq=False)
class Body:
    """One body from one angle.

    Attributes:
        width, height: size in pixels at scale 1.
        figures: figures in painting order.
        points: (N, 4) points of all figures, one after another.
    """

    width: float
    height: float
    figures: tuple[_Figure, ...]
    points: NDArray[np.float64]

    def draw_body(
        self,
        image: NDArray[np.uint8],
        box: tuple[float, float, float, float],
        mirrored: bool,
        colours: Colours,
        step: float,
    ) -> list[Lamp]:
        """Draws the body; returns its lamps.

        Args:
            image: (H, W, 3) uint8 BGR, drawn on in place.
            box: x0 y0 x1 y1 in pixels of ``image``.
            mirrored: True if the front is on the left.
            colours: colours of the actor.
            step: phase of the stride, radians.
        """
        x0, y0, x1, y1 = box
        height = y1 - y0
        uv = self.points[:, :2] + math.sin(step) * self.points[:, 2:]
        if mirrored:
            uv[:, 0] = 1.0 - uv[:, 0]
        fine = np.rint((np.array((x0, y0)) + uv * np.array((x1 - x0, height))) * _FINE).astype(np.int32)
        places = fine.tolist()
        inks = {**INKS, **colours._asdict()}
        lamps = []
        end = 0
        for kind, colour, factor, sizes, points in self.figures:
            start, end = end, end + len(points)
            x, y = places[start]
            if kind == "lamp":
                lamps.append(Lamp(x / _FINE, y / _FINE, sizes[0] * height, colour == "red"))
                continue
            ink = shade(inks[colour], factor)
            if kind == "polygon":
                cv2.fillPoly(image, [fine[start:end]], ink, cv2.LINE_AA, _SHIFT)
            elif kind == "line":
                width = max(1, round(sizes[0] * height))
                cv2.polylines(image, [fine[start:end]], False, ink, width, cv2.LINE_AA, _SHIFT)
            elif kind == "oval":
                across, down = sizes[0] * (x1 - x0), sizes[1] * height
                axes = max(1, round(across * _FINE)), max(1, round(down * _FINE))
                cv2.ellipse(image, (x, y), axes, 0, 0, 360, ink, -1, cv2.LINE_AA, _SHIFT)
            else:
                width = max(1, round(sizes[1] * height)) if kind == "ring" else -1
                cv2.circle(image, (x, y), round(sizes[0] * height * _FINE), ink, width, cv2.LINE_AA, _SHIFT)
        return lamps


def draw_model(rng: np.random.Generator, kind: Kind, fleet: Fleet, umbrellas: bool) -> str:
    """Samples the type of vehicle, or of person, of a new actor."""
    if kind == "person" and umbrellas and rng.random() < _UMBRELLAS:
        return "umbrella"
    city, utility = _MODELS[kind]
    models = {"city": city, "utility": utility, "mixed": tuple(dict.fromkeys(city + utility))}[fleet]
    return models[int(rng.integers(len(models)))]


def find_body(model: str, view: View, approaching: bool) -> Body:
    """Returns a model's body from an angle; along the street, its front or its rear."""
    return _BODIES["rear" if view == "front" and not approaching else view, model]


def _read_bodies(text: str) -> Mapping[tuple[str, str], Body]:
    """Returns the bodies that ``bodies.txt`` describes in its own format, by angle and name."""
    bodies: dict[tuple[str, str], Body] = {}
    for section in re.sub(" *#.*", "", text).strip().split("\n\n"):
        head, *lines = section.splitlines()
        view, name, width, height = re.findall(r"(\w+) (.+?)(?: (\d+)x(\d+))?:", head)[0]
        for angle in ("front", "rear") if view == "front" else (view,):
            figures: list[_Figure] = []
            for line in lines:
                only, words = re.findall(r"(front|rear)? *(.+)", line.strip())[0]
                if words.startswith("use "):
                    figures += bodies[angle, words.removeprefix("use ")].figures
                elif only in {"", angle}:
                    figures += _figures(*words.split())
            points = np.array([point for figure in figures for point in figure.points])
            bodies[angle, name] = Body(float(width or 0), float(height or 0), tuple(figures), points)
    return bodies


def _figures(kind: str, *words: str) -> Iterator[_Figure]:
    """Yields the figures of one line."""
    if kind == "wheel":
        radius, *centres = words
        for centre in centres:
            yield from _figures("disc", "tyre", radius, centre)
            yield from _figures("disc", "steel", str(_HUB * float(radius)), centre)
        return
    name, _, factor = words[0].partition("*")
    sizes = tuple(float(word) for word in words[1:] if "," not in word)
    points: list[_Point] = []
    for word in words[1 + len(sizes) :]:
        u, v, du, dv, *_ = (*map(float, re.split("[,~]", word)), 0.0, 0.0)
        points.append((u, v, du, dv))
    groups: list[list[_Point]]
    if kind == "block":
        corners = zip(points[::2], points[1::2], strict=True)
        groups = [[a, (b[0], a[1], 0.0, 0.0), b, (a[0], b[1], 0.0, 0.0)] for a, b in corners]
    elif kind in {"polygon", "line"}:
        groups = [points]
    else:
        groups = [[point] for point in points]
    for group in groups:
        yield _Figure("polygon" if kind == "block" else kind, name, float(factor or 1), sizes, group)


_BODIES = _read_bodies(Path(__file__).with_name("bodies.txt").read_text(encoding="utf-8"))
