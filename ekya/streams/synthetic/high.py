"""Draws bodies as seen by a camera high above: roofs, and a strip of the near side."""

import math

from ekya.streams.synthetic.palette import DARK, GLASS, LAMP, STEEL, TAIL, TYRE, Colours, shade
from ekya.streams.synthetic.pen import Pen


def _ends(pen: Pen, radius: float) -> None:
    for v in (0.2, 0.74):
        pen.block(LAMP, 0.96, v - 0.06, 1.0, v + 0.06)
        pen.block(TAIL, 0.0, v - 0.06, 0.03, v + 0.06)
        pen.lamp(0.99, v, radius)
        pen.lamp(0.01, v, radius * 0.6, tail=True)


def car(pen: Pen, colours: Colours, step: float) -> None:
    """Draws a car: bonnet, windscreen, roof, rear window, boot."""
    for u in (0.2, 0.78):
        pen.disc(TYRE, u, 0.88, 0.12)
    pen.polygon(
        colours.body, (0, 0.2), (0.05, 0.06), (0.93, 0.06), (1, 0.22), (1, 0.76), (0.93, 0.9), (0.05, 0.9),
        (0, 0.76),
    )  # fmt: skip
    pen.block(shade(colours.body, 0.65), 0.02, 0.78, 0.98, 0.9)
    pen.polygon(
        GLASS,
        (0.2, 0.14),
        (0.7, 0.14),
        (0.76, 0.22),
        (0.76, 0.62),
        (0.68, 0.76),
        (0.22, 0.76),
        (0.15, 0.6),
        (0.15, 0.22),
    )
    pen.block(shade(colours.body, 1.12), 0.29, 0.13, 0.58, 0.6)
    _ends(pen, 0.14)


def van(pen: Pen, colours: Colours, step: float) -> None:
    """Draws a long plain roof behind a windscreen; glass along the side."""
    for u in (0.2, 0.8):
        pen.disc(TYRE, u, 0.9, 0.1)
    pen.polygon(colours.body, (0, 0.08), (0.92, 0.08), (1, 0.2), (1, 0.8), (0.92, 0.92), (0, 0.92))
    pen.polygon(GLASS, (0.72, 0.08), (0.82, 0.16), (0.82, 0.6), (0.72, 0.68))
    pen.block(GLASS, 0.08, 0.64, 0.7, 0.76)
    pen.block(shade(colours.body, 1.12), 0.0, 0.06, 0.72, 0.6)
    for v in (0.16, 0.5):
        pen.line(DARK, 0.03, (0.08, v), (0.62, v))
    _ends(pen, 0.12)


def _truck_cab(pen: Pen, colours: Colours) -> None:
    for u in (0.12, 0.26, 0.86):
        pen.disc(TYRE, u, 0.9, 0.1)
    pen.block(colours.body, 0.77, 0.14, 0.99, 0.9)
    pen.block(GLASS, 0.92, 0.18, 0.98, 0.62)
    pen.block(shade(colours.body, 1.15), 0.77, 0.14, 0.91, 0.58)
    pen.block(GLASS, 0.84, 0.64, 0.92, 0.76)
    _ends(pen, 0.12)


def box_truck(pen: Pen, colours: Colours, step: float) -> None:
    """Draws a big plain box top, a gap, a smaller cab."""
    _truck_cab(pen, colours)
    pen.block(shade(colours.cargo, 0.7), 0.0, 0.04, 0.72, 0.86)
    pen.block(shade(colours.cargo, 1.08), 0.0, 0.02, 0.72, 0.6)
    for u in (0.18, 0.36, 0.54):
        pen.line(shade(colours.cargo, 0.85), 0.03, (u, 0.03), (u, 0.84))


def flatbed(pen: Pen, colours: Colours, step: float) -> None:
    """Draws an open deck with planks and a load."""
    _truck_cab(pen, colours)
    pen.block(shade(colours.body, 0.6), 0.0, 0.08, 0.72, 0.88)
    pen.block((90, 130, 160), 0.02, 0.12, 0.7, 0.74)
    pen.block(colours.cargo, 0.08, 0.16, 0.34, 0.62)
    pen.block(shade(colours.cargo, 0.7), 0.42, 0.2, 0.64, 0.66)


def tanker(pen: Pen, colours: Colours, step: float) -> None:
    """Draws a drum that shines along its top."""
    _truck_cab(pen, colours)
    pen.block(STEEL, 0.06, 0.08, 0.66, 0.84)
    pen.oval(STEEL, 0.06, 0.46, 0.06, 0.38)
    pen.oval(shade(STEEL, 0.8), 0.66, 0.46, 0.06, 0.38)
    pen.block(shade(STEEL, 1.45), 0.04, 0.24, 0.68, 0.36)
    for u in (0.2, 0.36, 0.52):
        pen.disc(DARK, u, 0.3, 0.08)


def _bus(pen: Pen, colours: Colours, side_top: float) -> None:
    for u in (0.2, 0.78):
        pen.disc(TYRE, u, 0.91, 0.09)
    pen.polygon(colours.body, (0, 0.05), (0.97, 0.05), (1, 0.12), (1, 0.92), (0, 0.92))
    pen.block(shade(colours.body, 1.12), 0.0, 0.02, 0.96, side_top)
    for u in (0.03, 0.19, 0.35, 0.51, 0.67, 0.83):
        pen.block(GLASS, u, side_top + 0.05, u + 0.12, side_top + 0.2)
    pen.block(GLASS, 0.96, 0.12, 1.0, 0.66)
    _ends(pen, 0.1)


def city_bus(pen: Pen, colours: Colours, step: float) -> None:
    """Draws a long roof with two vents over a row of windows."""
    _bus(pen, colours, 0.58)
    for u in (0.14, 0.62):
        pen.block(STEEL, u, 0.18, u + 0.16, 0.44)
        pen.block(DARK, u + 0.04, 0.24, u + 0.12, 0.38)


def double_decker(pen: Pen, colours: Colours, step: float) -> None:
    """Draws a plain roof over two rows of windows."""
    _bus(pen, colours, 0.4)
    for u in (0.03, 0.19, 0.35, 0.51, 0.67):
        pen.block(GLASS, u, 0.68, u + 0.12, 0.8)


def coach(pen: Pen, colours: Colours, step: float) -> None:
    """Draws a roof with hatches along the middle."""
    _bus(pen, colours, 0.58)
    for u in (0.16, 0.42, 0.68):
        pen.block(GLASS, u, 0.22, u + 0.1, 0.42)
    pen.line(shade(colours.body, 0.7), 0.04, (0.02, 0.12), (0.94, 0.12))


def person(pen: Pen, colours: Colours, step: float) -> None:
    """Draws a person: hair, shoulders, and short legs below."""
    stride = 0.2 * math.sin(step)
    pen.line(colours.legs, 0.13, (0.5, 0.6), (0.5 - stride, 0.95))
    pen.line(shade(colours.legs, 0.85), 0.13, (0.5, 0.6), (0.5 + stride, 0.95))
    pen.oval(colours.top, 0.5, 0.44, 0.46, 0.24)
    pen.disc(shade(colours.skin, 0.35), 0.5, 0.18, 0.16)
    pen.disc(colours.skin, 0.56, 0.24, 0.1)


def umbrella_person(pen: Pen, colours: Colours, step: float) -> None:
    """Draws an umbrella with legs."""
    stride = 0.2 * math.sin(step)
    pen.line(colours.legs, 0.12, (0.5, 0.6), (0.5 - stride, 0.96))
    pen.line(colours.legs, 0.12, (0.5, 0.6), (0.5 + stride, 0.96))
    pen.oval(shade(colours.top, 0.8), 0.5, 0.6, 0.32, 0.16)
    pen.oval(colours.cargo, 0.5, 0.32, 0.5, 0.31)
    for u, v in ((0.1, 0.2), (0.9, 0.2), (0.5, 0.62)):
        pen.line(shade(colours.cargo, 0.7), 0.03, (0.5, 0.3), (u, v))


def _rider(pen: Pen, colours: Colours, u: float) -> None:
    pen.line(colours.top, 0.13, (u + 0.06, 0.38), (u + 0.3, 0.42))
    pen.line(colours.top, 0.13, (u + 0.06, 0.5), (u + 0.3, 0.52))
    pen.oval(colours.top, u, 0.42, 0.17, 0.26)


def bike(pen: Pen, colours: Colours, step: float) -> None:
    """Draws two thin wheels and a thin bar under a rider's shoulders."""
    for u in (0.16, 0.84):
        pen.ring(TYRE, u, 0.72, 0.24, 0.04)
    pen.line(colours.body, 0.06, (0.16, 0.72), (0.4, 0.56), (0.74, 0.52), (0.84, 0.72))
    pen.line(colours.body, 0.06, (0.74, 0.26), (0.74, 0.7))
    foot = 0.08 * math.sin(step)
    pen.line(colours.legs, 0.12, (0.4, 0.56), (0.56, 0.66 + foot), (0.46, 0.84 + foot))
    _rider(pen, colours, 0.42)
    pen.disc(shade(colours.skin, 0.4), 0.47, 0.2, 0.15)
    pen.disc(colours.skin, 0.52, 0.24, 0.09)
    pen.lamp(0.08, 0.6, 0.07, tail=True)


def cargo_bike(pen: Pen, colours: Colours, step: float) -> None:
    """Draws a bicycle with an open cargo box in front."""
    bike(pen, colours, step)
    pen.block(colours.cargo, 0.68, 0.34, 0.98, 0.78)
    pen.block(shade(colours.cargo, 0.5), 0.73, 0.4, 0.93, 0.62)


def motorcycle(pen: Pen, colours: Colours, step: float) -> None:
    """Draws a thick body between thick wheels, a helmet above."""
    for u in (0.14, 0.86):
        pen.oval(TYRE, u, 0.7, 0.14, 0.2)
    pen.polygon(DARK, (0.24, 0.5), (0.76, 0.5), (0.7, 0.92), (0.3, 0.92))
    pen.polygon(
        colours.body,
        (0.0, 0.5),
        (0.3, 0.42),
        (0.72, 0.36),
        (0.92, 0.52),
        (0.72, 0.74),
        (0.3, 0.72),
        (0.0, 0.64),
    )
    pen.line(DARK, 0.07, (0.72, 0.12), (0.76, 0.42), (0.72, 0.72))
    _rider(pen, colours, 0.42)
    pen.disc(shade(colours.body, 0.8), 0.5, 0.22, 0.19)
    pen.block(GLASS, 0.54, 0.14, 0.6, 0.32)
    pen.disc(LAMP, 0.92, 0.52, 0.07)
    pen.lamp(0.95, 0.52, 0.16)
    pen.lamp(0.02, 0.56, 0.08, tail=True)
