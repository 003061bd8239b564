"""Draws bodies as seen by a camera over the road: fronts of approaching ones, rears of leaving ones."""

import math

from ekya.streams.synthetic.palette import DARK, GLASS, LAMP, STEEL, TAIL, TYRE, Colour, Colours, shade
from ekya.streams.synthetic.pen import Pen

_AMBER: Colour = (60, 176, 244)


def _pair(pen: Pen, v: float, inset: float, radius: float, rear: bool) -> None:
    for u in (inset, 1.0 - inset):
        pen.block(TAIL if rear else LAMP, u - 0.07, v - 0.045, u + 0.07, v + 0.045)
        pen.lamp(u, v, radius, tail=rear)


def _tyres(pen: Pen, inset: float, top: float) -> None:
    pen.block(TYRE, inset, top, inset + 0.16, 1.0)
    pen.block(TYRE, 0.84 - inset, top, 1.0 - inset, 1.0)


def car(pen: Pen, colours: Colours, step: float, rear: bool) -> None:
    """Draws a car: wide below, a narrower cabin above."""
    _tyres(pen, 0.05, 0.8)
    pen.polygon(colours.body, (0.14, 0.44), (0.26, 0.04), (0.74, 0.04), (0.86, 0.44))
    pen.polygon(GLASS, (0.2, 0.43), (0.29, 0.12), (0.71, 0.12), (0.8, 0.43))
    pen.polygon(
        colours.body, (0.02, 0.52), (0.14, 0.43), (0.86, 0.43), (0.98, 0.52), (0.98, 0.88), (0.02, 0.88)
    )
    pen.block(DARK, 0.3, 0.62, 0.7, 0.72) if not rear else pen.block(LAMP, 0.38, 0.68, 0.62, 0.77)
    pen.block(shade(colours.body, 0.65), 0.02, 0.8, 0.98, 0.88)
    _pair(pen, 0.6, 0.15, 0.16, rear)


def van(pen: Pen, colours: Colours, step: float, rear: bool) -> None:
    """Draws a tall car with a high, wide windscreen, rounded above."""
    _tyres(pen, 0.06, 0.86)
    pen.polygon(
        colours.body,
        (0.04, 0.5),
        (0.14, 0.06),
        (0.24, 0.01),
        (0.76, 0.01),
        (0.86, 0.06),
        (0.96, 0.5),
        (0.96, 0.9),
        (0.04, 0.9),
    )
    pen.polygon(GLASS, (0.13, 0.44), (0.21, 0.1), (0.79, 0.1), (0.87, 0.44))
    if rear:
        pen.line(colours.body, 0.03, (0.5, 0.08), (0.5, 0.46))
        pen.block(LAMP, 0.38, 0.7, 0.62, 0.77)
    else:
        pen.block(DARK, 0.28, 0.58, 0.72, 0.68)
    pen.block(shade(colours.body, 0.65), 0.04, 0.82, 0.96, 0.9)
    _pair(pen, 0.62, 0.15, 0.12, rear)


def truck(pen: Pen, colours: Colours, step: float, rear: bool) -> None:
    """Draws a cab in front of a wider, taller box; from behind, two doors with bars."""
    _tyres(pen, 0.06, 0.84)
    pen.block(colours.cargo, 0.0, 0.0, 1.0, 0.74)
    pen.block(shade(colours.cargo, 1.2), 0.0, 0.0, 1.0, 0.05)
    if rear:
        _doors(pen, shade(colours.cargo, 0.6))
        return
    _truck_cab(pen, colours, 0.26)


def flatbed(pen: Pen, colours: Colours, step: float, rear: bool) -> None:
    """Draws a cab with a load above it, narrower than the deck."""
    _tyres(pen, 0.06, 0.84)
    pen.polygon(colours.cargo, (0.16, 0.62), (0.2, 0.06), (0.8, 0.06), (0.84, 0.62))
    pen.line(DARK, 0.03, (0.36, 0.08), (0.34, 0.6))
    pen.line(DARK, 0.03, (0.64, 0.08), (0.66, 0.6))
    if rear:
        pen.block(shade(colours.body, 0.8), 0.0, 0.56, 1.0, 0.72)
        pen.block(DARK, 0.04, 0.72, 0.96, 0.88)
        _pair(pen, 0.8, 0.14, 0.09, True)
        return
    _truck_cab(pen, colours, 0.26)


def tanker(pen: Pen, colours: Colours, step: float, rear: bool) -> None:
    """Draws a cab in front of a round drum."""
    _tyres(pen, 0.06, 0.84)
    pen.oval(STEEL, 0.5, 0.38, 0.5, 0.37)
    pen.oval(shade(STEEL, 1.25), 0.42, 0.28, 0.28, 0.18)
    if rear:
        pen.block(colours.cargo, 0.3, 0.34, 0.7, 0.52)
        pen.block(DARK, 0.04, 0.72, 0.96, 0.88)
        _pair(pen, 0.8, 0.14, 0.09, True)
        return
    _truck_cab(pen, colours, 0.3)


def _doors(pen: Pen, line: Colour) -> None:
    pen.line(line, 0.03, (0.5, 0.03), (0.5, 0.72))
    for u in (0.25, 0.75):
        pen.line(line, 0.02, (u, 0.06), (u, 0.7))
    pen.block(DARK, 0.04, 0.74, 0.96, 0.88)
    _pair(pen, 0.81, 0.14, 0.09, True)


def _truck_cab(pen: Pen, colours: Colours, top: float) -> None:
    pen.polygon(
        colours.body,
        (0.1, top + 0.04),
        (0.14, top),
        (0.86, top),
        (0.9, top + 0.04),
        (0.94, 0.88),
        (0.06, 0.88),
    )
    pen.block(GLASS, 0.15, top + 0.05, 0.85, top + 0.24)
    pen.block(DARK, 0.28, 0.58, 0.72, 0.78)
    for v in (0.63, 0.7):
        pen.line(STEEL, 0.02, (0.3, v), (0.7, v))
    for u in (0.02, 0.98):
        pen.line(DARK, 0.05, (u, top + 0.08), (u, top + 0.22))
    _pair(pen, 0.8, 0.17, 0.1, False)


def city_bus(pen: Pen, colours: Colours, step: float, rear: bool) -> None:
    """Draws one box to the roof with a very large windscreen and a lit sign; small glass behind."""
    _coach_box(pen, colours)
    if rear:
        pen.block(GLASS, 0.14, 0.1, 0.86, 0.36)
        pen.block(shade(colours.body, 0.6), 0.2, 0.52, 0.8, 0.74)
    else:
        pen.block(DARK, 0.16, 0.05, 0.84, 0.15)
        pen.block(_AMBER, 0.24, 0.07, 0.76, 0.13)
        pen.block(GLASS, 0.06, 0.18, 0.94, 0.62)
        pen.line(colours.body, 0.02, (0.5, 0.18), (0.5, 0.62))
    _pair(pen, 0.8, 0.15, 0.09, rear)


def double_decker(pen: Pen, colours: Colours, step: float, rear: bool) -> None:
    """Draws a bus with glass on two floors."""
    _coach_box(pen, colours)
    pen.block(GLASS, 0.08, 0.07, 0.92, 0.28)
    if rear:
        pen.block(GLASS, 0.16, 0.44, 0.84, 0.58)
        pen.block(shade(colours.body, 0.6), 0.2, 0.66, 0.8, 0.76)
    else:
        pen.block(_AMBER, 0.26, 0.33, 0.74, 0.39)
        pen.block(GLASS, 0.08, 0.46, 0.92, 0.7)
    _pair(pen, 0.82, 0.15, 0.08, rear)


def coach(pen: Pen, colours: Colours, step: float, rear: bool) -> None:
    """Draws a rounded box, glass from knee to roof, mirrors like feelers."""
    _coach_box(pen, colours)
    if rear:
        pen.oval(GLASS, 0.5, 0.25, 0.38, 0.14)
        pen.block(shade(colours.body, 0.6), 0.16, 0.56, 0.84, 0.72)
    else:
        pen.polygon(
            GLASS, (0.05, 0.2), (0.2, 0.08), (0.8, 0.08), (0.95, 0.2), (0.95, 0.58), (0.5, 0.68), (0.05, 0.58)
        )
        for u in (0.02, 0.98):
            pen.line(DARK, 0.05, (u, 0.12), (u, 0.3))
    _pair(pen, 0.8, 0.15, 0.09, rear)


def _coach_box(pen: Pen, colours: Colours) -> None:
    _tyres(pen, 0.05, 0.86)
    pen.polygon(colours.body, (0, 0.06), (0.08, 0), (0.92, 0), (1, 0.06), (1, 0.92), (0, 0.92))
    pen.block(shade(colours.body, 0.65), 0.0, 0.85, 1.0, 0.92)


def person(pen: Pen, colours: Colours, step: float, rear: bool) -> None:
    """Draws a person who walks towards or away from the camera."""
    lift = 0.04 * math.sin(step)
    pen.line(colours.legs, 0.09, (0.36, 0.55), (0.34, 0.94 + lift))
    pen.line(shade(colours.legs, 0.85), 0.09, (0.64, 0.55), (0.66, 0.94 - lift))
    pen.polygon(colours.top, (0.14, 0.24), (0.3, 0.18), (0.7, 0.18), (0.86, 0.24), (0.76, 0.6), (0.24, 0.6))
    for u, swing in ((0.1, lift), (0.9, -lift)):
        pen.line(shade(colours.top, 0.78), 0.06, (u, 0.25), (u, 0.52 + swing))
    pen.disc(shade(colours.skin, 0.35), 0.5, 0.08, 0.08)
    if not rear:
        pen.disc(colours.skin, 0.5, 0.1, 0.065)


def umbrella_person(pen: Pen, colours: Colours, step: float, rear: bool) -> None:
    """Draws a person in a coat under an umbrella."""
    lift = 0.03 * math.sin(step)
    pen.line(colours.legs, 0.08, (0.4, 0.7), (0.38, 0.95 + lift))
    pen.line(colours.legs, 0.08, (0.6, 0.7), (0.62, 0.95 - lift))
    pen.polygon(colours.top, (0.3, 0.26), (0.7, 0.26), (0.8, 0.78), (0.2, 0.78))
    pen.disc(colours.skin if not rear else shade(colours.skin, 0.35), 0.5, 0.2, 0.06)
    pen.polygon(colours.cargo, (0.0, 0.18), (0.2, 0.05), (0.5, 0.0), (0.8, 0.05), (1.0, 0.18))


def bike(pen: Pen, colours: Colours, step: float, rear: bool) -> None:
    """Draws a rider on a wheel as thin as a line, behind a wide bar."""
    pen.line(TYRE, 0.05, (0.5, 0.6), (0.5, 0.98))
    foot = 0.05 * math.sin(step)
    pen.line(colours.legs, 0.08, (0.4, 0.5), (0.24, 0.66 + foot), (0.36, 0.82 + foot))
    pen.line(colours.legs, 0.08, (0.6, 0.5), (0.76, 0.66 - foot), (0.64, 0.82 - foot))
    pen.polygon(colours.top, (0.24, 0.22), (0.4, 0.17), (0.6, 0.17), (0.76, 0.22), (0.66, 0.54), (0.34, 0.54))
    pen.line(colours.body, 0.04, (0.02, 0.5), (0.98, 0.5))
    pen.line(colours.body, 0.05, (0.5, 0.48), (0.5, 0.66))
    pen.disc(shade(colours.skin, 0.4) if rear else colours.skin, 0.5, 0.09, 0.075)
    pen.lamp(0.5, 0.6, 0.05, tail=rear)


def cargo_bike(pen: Pen, colours: Colours, step: float, rear: bool) -> None:
    """Draws a bicycle with a cargo box."""
    bike(pen, colours, step, rear)
    pen.block(colours.cargo, 0.16, 0.6, 0.84, 0.84)
    pen.line(TYRE, 0.05, (0.5, 0.86), (0.5, 0.99))
    pen.line(colours.body, 0.04, (0.04, 0.52), (0.96, 0.52))


def motorcycle(pen: Pen, colours: Colours, step: float, rear: bool) -> None:
    """Draws a thick wheel, a filled body as wide as the rider, a helmet."""
    pen.block(TYRE, 0.38, 0.68, 0.62, 1.0)
    pen.polygon(colours.top, (0.16, 0.26), (0.36, 0.2), (0.64, 0.2), (0.84, 0.26), (0.74, 0.58), (0.26, 0.58))
    pen.polygon(DARK, (0.1, 0.6), (0.9, 0.6), (0.78, 0.84), (0.22, 0.84))
    pen.polygon(colours.body, (0.2, 0.5), (0.8, 0.5), (0.74, 0.74), (0.5, 0.82), (0.26, 0.74))
    for u in (0.06, 0.94):
        pen.line(DARK, 0.05, (u, 0.42), (0.5, 0.54))
        pen.line(STEEL, 0.05, (u, 0.38), (u, 0.44))
    pen.disc(shade(colours.body, 0.8), 0.5, 0.12, 0.115)
    if rear:
        pen.block(TAIL, 0.36, 0.58, 0.64, 0.66)
        pen.lamp(0.5, 0.62, 0.09, tail=True)
    else:
        pen.block(GLASS, 0.34, 0.09, 0.66, 0.16)
        pen.disc(LAMP, 0.5, 0.62, 0.08)
        pen.lamp(0.5, 0.62, 0.16)
