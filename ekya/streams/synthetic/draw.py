"""Tables of the bodies' sizes and drawing functions, one for each camera angle."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np

from ekya.streams.synthetic import front, high, side
from ekya.streams.synthetic.palette import Colours
from ekya.streams.synthetic.pen import Lamp, Pen
from ekya.streams.synthetic.scene import Fleet, Kind, View

Body = Callable[[Pen, Colours, float], None]


class _FrontBody(Protocol):
    def __call__(self, pen: Pen, colours: Colours, step: float, rear: bool) -> None: ...


class Shape(NamedTuple):
    """One body from one angle: its size in pixels at scale 1, and the function that draws it."""

    width: float
    height: float
    body: Body


_MODELS: Mapping[Fleet, Mapping[Kind, tuple[str, ...]]] = {
    "city": {
        "person": ("person",),
        "car": ("sedan", "hatch"),
        "truck": ("box truck",),
        "bus": ("city bus",),
        "bicycle": ("bike",),
        "motorcycle": ("scooter",),
    },
    "utility": {
        "person": ("person",),
        "car": ("van", "van", "hatch"),
        "truck": ("flatbed", "tanker"),
        "bus": ("double-decker", "coach"),
        "bicycle": ("cargo bike",),
        "motorcycle": ("tourer",),
    },
    "mixed": {
        "person": ("person",),
        "car": ("sedan", "hatch", "van"),
        "truck": ("box truck", "flatbed", "tanker"),
        "bus": ("city bus", "double-decker", "coach"),
        "bicycle": ("bike", "cargo bike"),
        "motorcycle": ("scooter", "tourer"),
    },
}

_SIDE: Mapping[str, Shape] = {
    "person": Shape(16, 42, side.person),
    "umbrella": Shape(22, 46, side.umbrella_person),
    "sedan": Shape(48, 19, side.sedan),
    "hatch": Shape(40, 20, side.hatch),
    "van": Shape(44, 24, side.van),
    "box truck": Shape(58, 30, side.box_truck),
    "flatbed": Shape(58, 28, side.flatbed),
    "tanker": Shape(60, 28, side.tanker),
    "city bus": Shape(60, 28, side.city_bus),
    "double-decker": Shape(54, 38, side.double_decker),
    "coach": Shape(60, 28, side.coach),
    "bike": Shape(34, 35, side.bike),
    "cargo bike": Shape(40, 34, side.cargo_bike),
    "scooter": Shape(31, 35, side.scooter),
    "tourer": Shape(38, 33, side.tourer),
}


_FRONT_BODIES: Mapping[str, tuple[float, float, _FrontBody]] = {
    "person": (17, 44, front.person),
    "umbrella": (24, 46, front.umbrella_person),
    "sedan": (38, 29, front.car),
    "hatch": (34, 29, front.car),
    "van": (37, 37, front.van),
    "box truck": (42, 54, front.truck),
    "flatbed": (42, 50, front.flatbed),
    "tanker": (42, 50, front.tanker),
    "city bus": (42, 52, front.city_bus),
    "double-decker": (40, 60, front.double_decker),
    "coach": (42, 52, front.coach),
    "bike": (20, 44, front.bike),
    "cargo bike": (22, 44, front.cargo_bike),
    "scooter": (23, 42, front.motorcycle),
    "tourer": (27, 42, front.motorcycle),
}
_FRONT = {name: Shape(w, h, partial(body, rear=False)) for name, (w, h, body) in _FRONT_BODIES.items()}
_REAR = {name: Shape(w, h, partial(body, rear=True)) for name, (w, h, body) in _FRONT_BODIES.items()}

_HIGH: Mapping[str, Shape] = {
    "person": Shape(17, 26, high.person),
    "umbrella": Shape(25, 28, high.umbrella_person),
    "sedan": Shape(46, 24, high.car),
    "hatch": Shape(39, 24, high.car),
    "van": Shape(46, 26, high.van),
    "box truck": Shape(58, 29, high.box_truck),
    "flatbed": Shape(58, 28, high.flatbed),
    "tanker": Shape(60, 28, high.tanker),
    "city bus": Shape(60, 27, high.city_bus),
    "double-decker": Shape(58, 31, high.double_decker),
    "coach": Shape(60, 27, high.coach),
    "bike": Shape(34, 24, high.bike),
    "cargo bike": Shape(38, 24, high.cargo_bike),
    "scooter": Shape(31, 24, high.motorcycle),
    "tourer": Shape(37, 25, high.motorcycle),
}


def draw_model(rng: np.random.Generator, kind: Kind, fleet: Fleet, umbrellas: bool) -> str:
    """Samples the type of vehicle, or of person, of a new actor."""
    if kind == "person" and umbrellas and rng.random() < 0.6:
        return "umbrella"
    models = _MODELS[fleet][kind]
    return models[int(rng.integers(len(models)))]


def shape_of(model: str, view: View, approaching: bool) -> Shape:
    """Returns size and body of a model from an angle; along the street, its front or its rear."""
    if view == "side":
        return _SIDE[model]
    if view == "high":
        return _HIGH[model]
    return _FRONT[model] if approaching else _REAR[model]


def paint(pen: Pen, shape: Shape, colours: Colours, step: float) -> list[Lamp]:
    """Draws one body with a pen for its box, ``step`` radians into its stride; returns its lamps."""
    shape.body(pen, colours, step)
    return pen.lamps
