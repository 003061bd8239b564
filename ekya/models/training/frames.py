"""Labelled frames: whole images with the objects that the golden detector found in them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ekya.core.areas import WHOLE_PICTURE, Areas
from ekya.core.objects import SAME_OBJECT_IOU, iou_matrix

OBJECTS_STAY_US = 4_000_000
"""Time for which most objects stay in view on a street."""


@dataclass(frozen=True, slots=True, eq=False)
class FrameObjects:
    """Objects of one frame.

    Attributes:
        boxes: (M, 4) float32, x0 y0 x1 y1 as fractions of the frame.
        classes: (M,) int64, index into the fleet's classes.
        doubtful: (K, 4) float32, regions in which the golden detector half believes: neither object nor
            background.
        areas: where objects count; a model is not judged by what it finds elsewhere.
    """

    boxes: NDArray[np.float32]
    classes: NDArray[np.int64]
    doubtful: NDArray[np.float32]
    areas: Areas = WHOLE_PICTURE


NOTHING = FrameObjects(np.zeros((0, 4), np.float32), np.zeros(0, np.int64), np.zeros((0, 4), np.float32))
"""Objects of an empty frame, which trains a detector to find nothing there."""


@dataclass(frozen=True, slots=True, eq=False)
class LabelledFrames:
    """Frames with their objects.

    Attributes:
        images: (N, S, S, 3) uint8, RGB; frames that were resized to a square.
        objects: N, of each frame.
        names: the fleet's classes, which the classes of objects index.
        tracks: (N,) int64; frames of one number were taken so close together that they show the same.
        t_us: (N,) int64, stream time.
    """

    images: NDArray[np.uint8]
    objects: tuple[FrameObjects, ...]
    names: tuple[str, ...]
    tracks: NDArray[np.int64]
    t_us: NDArray[np.int64]

    def __post_init__(self) -> None:
        shape = self.images.shape
        if len(shape) != 4 or shape[1] != shape[2] or shape[3] != 3 or self.images.dtype != np.uint8:
            raise ValueError(f"images must be (N, S, S, 3) uint8, not {shape} {self.images.dtype}")
        if not len(self.objects) == len(self.tracks) == len(self.t_us) == len(self.images):
            raise ValueError("every frame needs its objects, its track and its time")

    def __len__(self) -> int:
        return len(self.images)

    @property
    def side(self) -> int:
        """S, the side of an image in pixels."""
        return int(self.images.shape[1])

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        objects = sum(of.boxes.nbytes + of.classes.nbytes + of.doubtful.nbytes for of in self.objects)
        return self.images.nbytes + objects + self.tracks.nbytes + self.t_us.nbytes

    def labels(self) -> NDArray[np.int64]:
        """Returns the classes of all objects, frame by frame."""
        return np.concatenate([np.zeros(0, np.int64), *(of.classes for of in self.objects)])

    def objects_in_each(self) -> NDArray[np.int64]:
        """Returns (N,) the number of objects in each frame."""
        return np.array([len(of.classes) for of in self.objects], np.int64)

    def select_rows(self, indices: NDArray[np.int64]) -> "LabelledFrames":
        """Returns the frames at these positions, in this order."""
        objects = tuple(self.objects[at] for at in indices.tolist())
        return LabelledFrames(
            self.images[indices], objects, self.names, self.tracks[indices], self.t_us[indices]
        )

    def joined(self, others: Sequence[Self]) -> "LabelledFrames":
        """Returns these frames and those of the others, all of one side and of the same classes, in order."""
        parts = [self, *others]
        return LabelledFrames(
            np.concatenate([part.images for part in parts]),
            tuple(of for part in parts for of in part.objects),
            self.names,
            np.concatenate([part.tracks for part in parts]),
            np.concatenate([part.t_us for part in parts]),
        )

    def with_tracks(self, tracks: NDArray[np.int64]) -> "LabelledFrames":
        """Returns the frames with other track numbers."""
        return replace(self, tracks=tracks)

    def apart_from(self, newer: Self) -> NDArray[np.bool_]:
        """Returns (N,) whether a frame was so long before all newer ones that other objects show."""
        first_us = int(newer.t_us.min(initial=np.iinfo(np.int64).max))
        return self.t_us < first_us - OBJECTS_STAY_US

    def by_class(self) -> list[NDArray[np.int64]]:
        """Returns for each class that occurs the positions of the frames with an object of it, rising."""
        shown = [set(of.classes.tolist()) for of in self.objects]
        return [
            np.array([at for at, classes in enumerate(shown) if index in classes], np.int64)
            for index in sorted(set().union(*shown))
        ]

    def mix_weights(self, training: Self) -> NDArray[np.float64]:
        """Returns ones: accuracy counts objects, and the mix of classes is that of the frames."""
        return np.ones(len(self))


def split_by_time(
    frames: LabelledFrames, validation_fraction: float
) -> tuple[LabelledFrames, LabelledFrames]:
    """Splits frames into training and validation, by track; the youngest tracks with objects validate.

    Empty frames train, unless they came after the first frame that validates.

    Returns:
        Training and validation, each in the order of ``frames``; a single track with objects is for training.
    """
    counts = frames.objects_in_each()
    tracks = np.unique(frames.tracks[counts > 0])
    objects = np.array([counts[frames.tracks == track].sum() for track in tracks])
    if len(tracks) < 2:
        return frames, frames.select_rows(np.zeros(0, np.int64))
    held = np.cumsum(objects[::-1])
    count = 1 + int(np.argmin(np.abs(held[:-1] - validation_fraction * held[-1])))
    # Tracks are numbered in the order of time.
    validates = frames.tracks >= tracks[-count]
    return frames.select_rows(np.flatnonzero(~validates)), frames.select_rows(np.flatnonzero(validates))


def distinct_objects(frames: LabelledFrames) -> int:
    """Returns the number of different objects in frames, which are in the order of time.

    A box that overlaps one of its class in the frame before by half shows the same object: a parked car.
    """
    distinct, before = 0, NOTHING
    for of in frames.objects:
        same = (iou_matrix(of.boxes, before.boxes) >= SAME_OBJECT_IOU) & (
            of.classes[:, None] == before.classes[None]
        )
        distinct += int((~same.any(axis=1)).sum())
        before = of
    return distinct
