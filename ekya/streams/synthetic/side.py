"""Draws bodies as seen by a camera beside the road. Each function draws in the pen's box."""

import math

from ekya.streams.synthetic.palette import DARK, GLASS, LAMP, STEEL, TAIL, TYRE, Colours, shade
from ekya.streams.synthetic.pen import Pen


def _wheels(pen: Pen, radius: float, *places: float) -> None:
    for u in places:
        pen.disc(TYRE, u, 0.99 - radius, radius)
        pen.disc(STEEL, u, 0.99 - radius, radius * 0.45)


def _road_lamps(pen: Pen, v: float, radius: float) -> None:
    pen.block(LAMP, 0.95, v - 0.05, 1.0, v + 0.05)
    pen.block(TAIL, 0.0, v - 0.06, 0.03, v + 0.06)
    pen.lamp(0.99, v, radius)
    pen.lamp(0.01, v, radius * 0.7, tail=True)


def sedan(pen: Pen, colours: Colours, step: float) -> None:
    """Draws a low car with three boxes."""
    pen.polygon(
        colours.body, (0, 0.52), (0.16, 0.45), (0.3, 0.06), (0.62, 0.06), (0.78, 0.46), (0.97, 0.56),
        (1, 0.84), (0, 0.84),
    )  # fmt: skip
    pen.polygon(GLASS, (0.23, 0.44), (0.33, 0.14), (0.45, 0.14), (0.45, 0.44))
    pen.polygon(GLASS, (0.48, 0.44), (0.48, 0.14), (0.6, 0.14), (0.72, 0.44))
    pen.block(shade(colours.body, 0.72), 0.0, 0.72, 1.0, 0.84)
    _wheels(pen, 0.21, 0.2, 0.79)
    _road_lamps(pen, 0.6, 0.2)


def hatch(pen: Pen, colours: Colours, step: float) -> None:
    """Draws a short car with a steep tail."""
    pen.polygon(
        colours.body, (0, 0.5), (0.06, 0.12), (0.2, 0.04), (0.56, 0.04), (0.76, 0.42), (0.98, 0.54),
        (1, 0.85), (0, 0.85),
    )  # fmt: skip
    pen.polygon(GLASS, (0.09, 0.42), (0.13, 0.14), (0.33, 0.13), (0.33, 0.42))
    pen.polygon(GLASS, (0.37, 0.42), (0.37, 0.13), (0.54, 0.13), (0.7, 0.42))
    pen.block(shade(colours.body, 0.72), 0.0, 0.72, 1.0, 0.85)
    _wheels(pen, 0.21, 0.19, 0.8)
    _road_lamps(pen, 0.6, 0.2)


def van(pen: Pen, colours: Colours, step: float) -> None:
    """Draws a tall car: one box with a short nose, glass to the rear, no deck."""
    pen.polygon(
        colours.body, (0, 0.06), (0.04, 0.02), (0.66, 0.02), (0.82, 0.36), (0.99, 0.5), (1, 0.88), (0, 0.88)
    )
    pen.polygon(GLASS, (0.6, 0.4), (0.6, 0.1), (0.66, 0.1), (0.79, 0.4))
    pen.block(GLASS, 0.36, 0.1, 0.55, 0.4)
    pen.block(GLASS, 0.07, 0.1, 0.31, 0.4)
    pen.block(shade(colours.body, 0.72), 0.0, 0.76, 1.0, 0.88)
    _wheels(pen, 0.18, 0.19, 0.8)
    _road_lamps(pen, 0.6, 0.16)


def _cab(pen: Pen, colours: Colours) -> None:
    pen.polygon(colours.body, (0.74, 0.22), (0.92, 0.22), (0.99, 0.52), (1, 0.86), (0.74, 0.86))
    pen.polygon(GLASS, (0.82, 0.3), (0.91, 0.3), (0.97, 0.52), (0.82, 0.52))
    pen.block(DARK, 0.03, 0.76, 0.76, 0.85)
    _wheels(pen, 0.15, 0.1, 0.25, 0.86)
    _road_lamps(pen, 0.68, 0.13)


def box_truck(pen: Pen, colours: Colours, step: float) -> None:
    """Draws a closed box behind a lower cab, with a gap between them."""
    pen.block(colours.cargo, 0.0, 0.02, 0.7, 0.76)
    pen.block(shade(colours.cargo, 1.2), 0.0, 0.02, 0.7, 0.08)
    for u in (0.18, 0.36, 0.54):
        pen.line(shade(colours.cargo, 0.75), 0.02, (u, 0.1), (u, 0.74))
    _cab(pen, colours)


def flatbed(pen: Pen, colours: Colours, step: float) -> None:
    """Draws an open deck with a stacked load."""
    pen.polygon(colours.cargo, (0.05, 0.64), (0.09, 0.28), (0.34, 0.28), (0.36, 0.64))
    pen.polygon(shade(colours.cargo, 0.7), (0.38, 0.64), (0.38, 0.4), (0.64, 0.4), (0.66, 0.64))
    pen.block(shade(colours.body, 0.8), 0.0, 0.63, 0.72, 0.77)
    pen.line(DARK, 0.04, (0.7, 0.66), (0.7, 0.2))
    _cab(pen, colours)


def tanker(pen: Pen, colours: Colours, step: float) -> None:
    """Draws a long drum behind a cab."""
    pen.block(STEEL, 0.08, 0.18, 0.62, 0.72)
    pen.oval(STEEL, 0.08, 0.45, 0.08, 0.27)
    pen.oval(shade(STEEL, 0.8), 0.62, 0.45, 0.08, 0.27)
    pen.block(shade(STEEL, 1.35), 0.08, 0.26, 0.62, 0.34)
    pen.block(colours.cargo, 0.2, 0.42, 0.5, 0.58)
    pen.block(DARK, 0.3, 0.1, 0.4, 0.18)
    _cab(pen, colours)


def _coachwork(pen: Pen, colours: Colours, top: float) -> None:
    pen.polygon(
        colours.body, (0, top + 0.04), (0.03, top), (0.96, top), (1, top + 0.12), (1, 0.88), (0, 0.88)
    )
    pen.block(shade(colours.body, 1.25), 0.02, top, 0.96, top + 0.06)
    pen.block(shade(colours.body, 0.72), 0.0, 0.78, 1.0, 0.88)


def city_bus(pen: Pen, colours: Colours, step: float) -> None:
    """Draws one long box with a row of windows and two doors."""
    _coachwork(pen, colours, 0.04)
    for u in (0.04, 0.17, 0.44, 0.57, 0.7):
        pen.block(GLASS, u, 0.16, u + 0.1, 0.5)
    pen.block(GLASS, 0.93, 0.14, 1.0, 0.56)
    for u in (0.3, 0.83):
        pen.block(GLASS, u, 0.18, u + 0.08, 0.84)
        pen.line(STEEL, 0.03, (u + 0.04, 0.2), (u + 0.04, 0.84))
    _wheels(pen, 0.14, 0.2, 0.74)
    _road_lamps(pen, 0.72, 0.13)


def double_decker(pen: Pen, colours: Colours, step: float) -> None:
    """Draws a bus with two rows of windows."""
    _coachwork(pen, colours, 0.01)
    pen.block(GLASS, 0.04, 0.09, 1.0, 0.3)
    pen.block(GLASS, 0.04, 0.44, 0.78, 0.64)
    for u in (0.2, 0.36, 0.52, 0.68, 0.86):
        pen.line(colours.body, 0.03, (u, 0.08), (u, 0.65))
    pen.block(GLASS, 0.84, 0.44, 1.0, 0.82)
    _wheels(pen, 0.1, 0.2, 0.74)
    _road_lamps(pen, 0.76, 0.1)


def coach(pen: Pen, colours: Colours, step: float) -> None:
    """Draws a travel coach: a dark ribbon of glass, luggage below, a slanting front."""
    pen.polygon(colours.body, (0, 0.08), (0.03, 0.03), (0.9, 0.03), (1, 0.5), (1, 0.88), (0, 0.88))
    pen.polygon(GLASS, (0.02, 0.13), (0.9, 0.13), (0.97, 0.48), (0.02, 0.48))
    for u in (0.2, 0.4, 0.6, 0.8):
        pen.line(shade(GLASS, 1.5), 0.02, (u, 0.14), (u, 0.47))
    pen.polygon(shade(colours.body, 0.65), (0.0, 0.88), (0.0, 0.64), (0.45, 0.76), (1.0, 0.76), (1.0, 0.88))
    for u in (0.34, 0.5, 0.66):
        pen.line(shade(colours.body, 0.5), 0.02, (u, 0.56), (u, 0.84))
    _wheels(pen, 0.14, 0.16, 0.28, 0.8)
    _road_lamps(pen, 0.72, 0.13)


def person(pen: Pen, colours: Colours, step: float) -> None:
    """Draws a walking person; ``step`` is the phase of the stride in radians."""
    stride = 0.3 * math.sin(step)
    dark = shade(colours.legs, 0.78)
    pen.line(dark, 0.08, (0.5, 0.55), (0.5 - stride, 0.97))
    pen.line(colours.legs, 0.09, (0.5, 0.55), (0.5 + stride, 0.97))
    pen.polygon(colours.top, (0.22, 0.2), (0.78, 0.2), (0.74, 0.6), (0.26, 0.6))
    pen.line(shade(colours.top, 0.75), 0.06, (0.5, 0.24), (0.5 - stride * 1.1, 0.52))
    pen.disc(shade(colours.skin, 0.35), 0.5, 0.075, 0.075)
    pen.disc(colours.skin, 0.55, 0.1, 0.07)


def umbrella_person(pen: Pen, colours: Colours, step: float) -> None:
    """Draws a person under an umbrella, in a coat to the knees."""
    stride = 0.2 * math.sin(step)
    pen.line(colours.legs, 0.08, (0.5, 0.7), (0.5 - stride, 0.97))
    pen.line(colours.legs, 0.08, (0.5, 0.7), (0.5 + stride, 0.97))
    pen.polygon(colours.top, (0.34, 0.27), (0.66, 0.27), (0.76, 0.78), (0.24, 0.78))
    pen.disc(colours.skin, 0.52, 0.2, 0.06)
    pen.polygon(colours.cargo, (0.0, 0.18), (0.2, 0.05), (0.5, 0.0), (0.8, 0.05), (1.0, 0.18))


def _rider(pen: Pen, colours: Colours, hip: tuple[float, float], neck: tuple[float, float]) -> None:
    pen.line(colours.top, 0.15, hip, neck)
    pen.disc(colours.skin, neck[0] + 0.04, neck[1] - 0.1, 0.085)


def bike(pen: Pen, colours: Colours, step: float) -> None:
    """Draws two thin wheels far apart, a thin frame, an upright pedalling rider."""
    for u in (0.2, 0.8):
        pen.ring(TYRE, u, 0.77, 0.2, 0.03)
        pen.ring(STEEL, u, 0.77, 0.16, 0.01)
    foot = 0.07 * math.sin(step)
    pen.line(colours.body, 0.04, (0.2, 0.77), (0.42, 0.5), (0.72, 0.5), (0.47, 0.77), (0.2, 0.77))
    pen.line(colours.body, 0.04, (0.8, 0.77), (0.7, 0.42))
    pen.line(colours.legs, 0.09, (0.38, 0.46), (0.55, 0.6 + foot), (0.47, 0.82 + foot))
    _rider(pen, colours, (0.38, 0.45), (0.54, 0.18))
    pen.line(shade(colours.top, 0.8), 0.05, (0.54, 0.22), (0.72, 0.42))
    pen.lamp(0.14, 0.62, 0.06, tail=True)


def cargo_bike(pen: Pen, colours: Colours, step: float) -> None:
    """Draws a bicycle with a cargo box in front of the rider."""
    pen.ring(TYRE, 0.17, 0.78, 0.19, 0.03)
    pen.ring(TYRE, 0.86, 0.83, 0.14, 0.03)
    foot = 0.07 * math.sin(step)
    pen.line(colours.body, 0.04, (0.17, 0.78), (0.34, 0.5), (0.46, 0.8), (0.86, 0.83))
    pen.polygon(colours.cargo, (0.54, 0.52), (0.92, 0.52), (0.86, 0.78), (0.58, 0.78))
    pen.line(colours.legs, 0.09, (0.3, 0.46), (0.45, 0.6 + foot), (0.4, 0.82 + foot))
    _rider(pen, colours, (0.3, 0.45), (0.4, 0.18))
    pen.line(shade(colours.top, 0.8), 0.05, (0.4, 0.22), (0.55, 0.42))
    pen.lamp(0.1, 0.62, 0.06, tail=True)


def scooter(pen: Pen, colours: Colours, step: float) -> None:
    """Draws a motor scooter: small thick wheels, a body down to the road, a shield in front."""
    for u in (0.2, 0.82):
        pen.disc(TYRE, u, 0.85, 0.13)
        pen.disc(STEEL, u, 0.85, 0.05)
    pen.polygon(
        colours.body,
        (0.02, 0.58),
        (0.48, 0.54),
        (0.52, 0.78),
        (0.7, 0.82),
        (0.7, 0.9),
        (0.3, 0.9),
        (0.1, 0.74),
    )
    pen.polygon(colours.body, (0.7, 0.9), (0.66, 0.42), (0.78, 0.38), (0.9, 0.78), (0.8, 0.84))
    pen.line(colours.legs, 0.12, (0.34, 0.52), (0.6, 0.56), (0.58, 0.8))
    _rider(pen, colours, (0.34, 0.5), (0.42, 0.2))
    pen.line(shade(colours.top, 0.8), 0.07, (0.42, 0.25), (0.7, 0.42))
    pen.disc(shade(colours.body, 0.8), 0.47, 0.09, 0.1)
    _motor_lamps(pen, 0.48)


def tourer(pen: Pen, colours: Colours, step: float) -> None:
    """Draws a heavy motorcycle: thick wheels, tank and engine, a helmeted rider who leans forward."""
    for u in (0.19, 0.81):
        pen.disc(TYRE, u, 0.79, 0.2)
        pen.disc(STEEL, u, 0.79, 0.08)
    pen.polygon(DARK, (0.3, 0.62), (0.68, 0.6), (0.64, 0.9), (0.34, 0.9))
    pen.polygon(
        colours.body, (0.0, 0.5), (0.4, 0.52), (0.52, 0.4), (0.76, 0.42), (0.86, 0.6), (0.6, 0.7), (0.1, 0.64)
    )
    pen.line(STEEL, 0.06, (0.5, 0.86), (0.06, 0.84))
    pen.line(colours.legs, 0.12, (0.34, 0.5), (0.56, 0.62), (0.42, 0.82))
    _rider(pen, colours, (0.34, 0.48), (0.58, 0.24))
    pen.line(shade(colours.top, 0.8), 0.07, (0.57, 0.27), (0.74, 0.44))
    pen.disc(shade(colours.body, 0.8), 0.63, 0.12, 0.11)
    _motor_lamps(pen, 0.5)


def _motor_lamps(pen: Pen, v: float) -> None:
    pen.disc(LAMP, 0.88, v, 0.05)
    pen.lamp(0.9, v, 0.16)
    pen.lamp(0.03, 0.58, 0.08, tail=True)
