"""A street of bright bars whose place tells the class, and an edge model that learns it in milliseconds."""

import numpy as np
from torch import nn

from ekya.learning.architectures import Trunk
from ekya.streams.frame import Frame, Truth
from ekya.workers.costs import CostCard

FPS = 10.0
WINDOW_US = 3_000_000
FRAMES = 30
NAMES = ("left", "middle", "right")
SIDE = 16
CARD = CostCard("a device", 1e9, 2e9, 1e9, 0.0, 1e9, 1e9, 0)
PARKED = 4
"""Frames for which an object stands before the next one takes its place."""


def tiny_trunk():
    """Three blocks with few channels."""

    def block(channels_in, channels_out):
        conv = nn.Conv2d(channels_in, channels_out, 3, stride=2, padding=1, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(channels_out), nn.ReLU())

    return Trunk({"first": block(3, 8), "second": block(8, 8), "third": block(8, 16)}, 16)


def class_at(place, index):
    """What stands at a place; a new object every few frames."""
    return int(np.random.default_rng((place, index // PARKED)).integers(len(NAMES)))


def frame_at(index):
    """Four places, each 16 pixels wide; what is seen there is a bar in one of three positions."""
    image = np.full((16, 80, 3), 40, np.uint8)
    boxes, classes, tracks = [], [], []
    for place in range(4):
        of = class_at(place, index)
        # An object that has gone leaves room, so that the next one is another track.
        if index % PARKED == PARKED - 1:
            continue
        left = 20 * place
        image[:, left + 5 * of : left + 5 * of + 5] = 220
        boxes.append([left, 0, left + 16, 16])
        classes.append(of)
        tracks.append(1000 * place + index // PARKED)
    boxes = np.array(boxes, np.float32).reshape(-1, 4)
    frame = Frame(index, round(index * 1e6 / FPS), image, boxes)
    return frame, Truth(boxes, np.array(classes, np.int64), np.array(tracks, np.int64))


def frames(count):
    """A stream of so many frames."""
    return (frame_at(index) for index in range(count))


class Golden:
    """Sees the bars."""

    background = None

    def label(self, items):
        """The class of each box."""
        return [
            np.array([self._bar(item.picture, box) for box in item.boxes], np.int64).reshape(-1)
            for item in items
        ]

    def operations(self, items):
        """A million a box."""
        return sum(1_000_000 * len(item.boxes) for item in items)

    @staticmethod
    def _bar(image, box):
        left = int(box[0])
        return int(np.argmax([image[:, left + 5 * of : left + 5 * of + 5].sum() for of in range(3)]))
