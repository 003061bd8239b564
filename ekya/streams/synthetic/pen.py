"""Pen that draws in an object's relative coordinates, so that one description of a body serves all sizes."""

from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from ekya.streams.synthetic.palette import Colour

_SHIFT = 4
_FINE = 1 << _SHIFT


class Lamp(NamedTuple):
    """A light that shines in the dark; position and radius in pixels; red if ``tail``, else white."""

    x: float
    y: float
    radius: float
    tail: bool


class Pen:
    """Draws inside one box: u runs from the rear (0) to the front (1), v from top (0) to bottom (1).

    Positions have a resolution of a sixteenth of a pixel, so that slow objects move smoothly.
    """

    def __init__(
        self, image: NDArray[np.uint8], box: tuple[float, float, float, float], mirrored: bool
    ) -> None:
        """Creates a pen.

        Args:
            image: (H, W, 3) uint8 BGR, drawn on in place.
            box: x0 y0 x1 y1 in pixels of ``image``.
            mirrored: True if the front is on the left.
        """
        self._image = image
        self._x0, self._y0, x1, y1 = box
        self.width = x1 - self._x0
        self.height = y1 - self._y0
        self._mirrored = mirrored
        self.lamps: list[Lamp] = []

    def polygon(self, colour: Colour, *points: tuple[float, float]) -> None:
        """Fills a polygon given in (u, v)."""
        corners = np.array([self._fine(u, v) for u, v in points], np.int32)
        cv2.fillPoly(self._image, [corners], colour, cv2.LINE_AA, _SHIFT)

    def block(self, colour: Colour, u0: float, v0: float, u1: float, v1: float) -> None:
        """Fills a rectangle."""
        self.polygon(colour, (u0, v0), (u1, v0), (u1, v1), (u0, v1))

    def line(self, colour: Colour, thickness: float, *points: tuple[float, float]) -> None:
        """Draws a stroke; ``thickness`` is a part of the box's height, at least one pixel."""
        path = np.array([self._fine(u, v) for u, v in points], np.int32)
        width = max(1, round(thickness * self.height))
        cv2.polylines(self._image, [path], False, colour, width, cv2.LINE_AA, _SHIFT)

    def disc(self, colour: Colour, u: float, v: float, radius: float) -> None:
        """Fills a circle; ``radius`` is a part of the box's height."""
        cv2.circle(
            self._image,
            self._fine(u, v),
            round(radius * self.height * _FINE),
            colour,
            -1,
            cv2.LINE_AA,
            _SHIFT,
        )

    def ring(self, colour: Colour, u: float, v: float, radius: float, thickness: float) -> None:
        """Draws a circle's outline; ``radius`` and ``thickness`` are parts of the box's height."""
        width = max(1, round(thickness * self.height))
        cv2.circle(
            self._image,
            self._fine(u, v),
            round(radius * self.height * _FINE),
            colour,
            width,
            cv2.LINE_AA,
            _SHIFT,
        )

    def oval(self, colour: Colour, u: float, v: float, across: float, down: float) -> None:
        """Fills an ellipse with half axes as parts of the box's width and height."""
        axes = (max(1, round(across * self.width * _FINE)), max(1, round(down * self.height * _FINE)))
        cv2.ellipse(self._image, self._fine(u, v), axes, 0, 0, 360, colour, -1, cv2.LINE_AA, _SHIFT)

    def lamp(self, u: float, v: float, radius: float, tail: bool = False) -> None:
        """Adds a lamp, to be lit in the dark; ``radius`` is a part of the box's height."""
        x, y = self._fine(u, v)
        self.lamps.append(Lamp(x / _FINE, y / _FINE, radius * self.height, tail))

    def _fine(self, u: float, v: float) -> tuple[int, int]:
        across = 1.0 - u if self._mirrored else u
        return (
            round((self._x0 + across * self.width) * _FINE),
            round((self._y0 + v * self.height) * _FINE),
        )
