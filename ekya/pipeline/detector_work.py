"""Work of a detector on random images, to be timed: the time of a pass does not depend on what they show."""

import numpy as np
from numpy.typing import NDArray

from ekya.core.host import TYPICAL_OBJECTS
from ekya.models.training.frames import FrameObjects, LabelledFrames

_GAP_US = 1_000_000


def random_images(count: int, side: int) -> NDArray[np.uint8]:
    """Returns (count, side, side, 3) uint8 noise."""
    return np.random.default_rng(0).integers(0, 256, (count, side, side, 3), np.uint8)


def random_frames(count: int, side: int, names: tuple[str, ...]) -> LabelledFrames:
    """Returns frames of noise, each with a typical number of labelled objects, a second apart."""
    rng = np.random.default_rng(1)
    each = round(TYPICAL_OBJECTS)
    low = rng.uniform(0.0, 0.7, (count, each, 2))
    boxes = np.concatenate([low, low + rng.uniform(0.05, 0.3, low.shape)], axis=2).astype(np.float32)
    classes = rng.integers(0, len(names), (count, each))
    none = np.zeros((0, 4), np.float32)
    objects = tuple(FrameObjects(*of, none) for of in zip(boxes, classes, strict=True))
    order = np.arange(count, dtype=np.int64)
    return LabelledFrames(random_images(count, side), objects, names, order, order * _GAP_US)
