"""Light and weather: renders a street by day as dusk, rain or night."""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from ekya.streams.synthetic.bodies import Lamp
from ekya.streams.synthetic.scene import Lighting
from ekya.streams.synthetic.street import BASE_HEIGHT, BASE_WIDTH


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
