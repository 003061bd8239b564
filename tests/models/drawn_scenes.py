"""Drawn frames with objects that a detector learns quickly."""

import numpy as np

from ekya.models.training.frames import FrameObjects, LabelledFrames

FLEET = ("car", "person")
SIDE = 96


def scenes(count: int, seed: int, first_track: int = 0) -> LabelledFrames:
    """Grey frames with a bright square (a car) and, in every second, a dark bar (a person)."""
    rng = np.random.default_rng(seed)
    images = rng.integers(90, 110, (count, SIDE, SIDE, 3)).astype(np.uint8)
    objects = []
    for at, image in enumerate(images):
        x, y = rng.integers(4, 40, 2)
        image[y : y + 40, x : x + 40] = 230
        boxes, classes = [[x, y, x + 40, y + 40]], [0]
        if at % 2:
            image[50:90, 70:86] = 10
            boxes.append([70, 50, 86, 90])
            classes.append(1)
        objects.append(
            FrameObjects(
                np.array(boxes, np.float32) / SIDE, np.array(classes, np.int64), np.zeros((0, 4), np.float32)
            )
        )
    order = np.arange(count, dtype=np.int64)
    return LabelledFrames(images, tuple(objects), FLEET, first_track + order // 2, order * 1_000_000)
