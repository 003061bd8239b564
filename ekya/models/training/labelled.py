"""Examples that a retraining learns from: labelled crops, and their split into training and validation."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

VALIDATION_FRACTION = 0.2
"""Fraction of a window's labels that is held out for validation; the rest is for training."""


class Examples(Protocol):
    """Interface of labelled images: crops of objects (``LabelledCrops``) or frames (``LabelledFrames``)."""

    @property
    def images(self) -> NDArray[np.uint8]:
        """(N, S, S, 3) uint8, RGB."""

    @property
    def tracks(self) -> NDArray[np.int64]:
        """(N,) int64; examples of one track show the same, and are never split."""

    @property
    def t_us(self) -> NDArray[np.int64]:
        """(N,) int64, stream time."""

    @property
    def side(self) -> int:
        """S, the side of an image in pixels."""

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""

    def __len__(self) -> int:
        """Returns N."""

    def select_rows(self, indices: NDArray[np.int64]) -> Self:
        """Returns the examples at these positions, in this order."""

    def joined(self, others: Sequence[Self]) -> Self:
        """Returns these examples and those of the others, in order."""

    def with_tracks(self, tracks: NDArray[np.int64]) -> Self:
        """Returns the examples with other track numbers."""

    def apart_from(self, newer: Self) -> NDArray[np.bool_]:
        """Returns (N,) whether an example shows no object of newer labels of the same stream."""

    def labels(self) -> NDArray[np.int64]:
        """Returns the classes of all objects, in order."""

    def objects_in_each(self) -> NDArray[np.int64]:
        """Returns (N,) the number of objects in each."""

    def by_class(self) -> list[NDArray[np.int64]]:
        """Returns for each class that occurs the positions of its examples, rising."""

    def mix_weights(self, training: Self) -> NDArray[np.float64]:
        """Returns (N,) weights that make these, a validation part, count as the whole window would."""


E = TypeVar("E", bound=Examples)


@dataclass(frozen=True, slots=True, eq=False)
class LabelledCrops:
    """Object crops with the classes that a golden model gave them.

    Attributes:
        crops: (N, S, S, 3) uint8, RGB.
        classes: (N,) int64, index into the list of classes that the model is trained for.
        tracks: (N,) int64, track number of the object, constant over its lifetime.
        t_us: (N,) int64, stream time of the frame that the crop was cut from.
    """

    crops: NDArray[np.uint8]
    classes: NDArray[np.int64]
    tracks: NDArray[np.int64]
    t_us: NDArray[np.int64]

    def __post_init__(self) -> None:
        shape = self.crops.shape
        if len(shape) != 4 or shape[1] != shape[2] or shape[3] != 3 or self.crops.dtype != np.uint8:
            raise ValueError(f"crops must be (N, S, S, 3) uint8, not {shape} {self.crops.dtype}")
        for name in ("classes", "tracks", "t_us"):
            column: NDArray[np.int64] = getattr(self, name)
            if column.shape != shape[:1] or column.dtype != np.int64:
                raise ValueError(f"{name} must be {shape[:1]} int64, not {column.shape} {column.dtype}")

    def __len__(self) -> int:
        return len(self.crops)

    @property
    def images(self) -> NDArray[np.uint8]:
        """The crops."""
        return self.crops

    @property
    def side(self) -> int:
        """S, the side of a crop in pixels."""
        return int(self.crops.shape[1])

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self.crops.nbytes + self.classes.nbytes + self.tracks.nbytes + self.t_us.nbytes

    def select_rows(self, indices: NDArray[np.int64]) -> "LabelledCrops":
        """Returns the crops at these positions, in this order."""
        return LabelledCrops(
            self.crops[indices], self.classes[indices], self.tracks[indices], self.t_us[indices]
        )

    def joined(self, others: Sequence[Self]) -> "LabelledCrops":
        """Returns these crops and those of the others, all of one side, in order."""
        parts = [self, *others]
        return LabelledCrops(
            np.concatenate([part.crops for part in parts]),
            np.concatenate([part.classes for part in parts]),
            np.concatenate([part.tracks for part in parts]),
            np.concatenate([part.t_us for part in parts]),
        )

    def with_tracks(self, tracks: NDArray[np.int64]) -> "LabelledCrops":
        """Returns the crops with other track numbers."""
        return replace(self, tracks=tracks)

    def apart_from(self, newer: Self) -> NDArray[np.bool_]:
        """Returns (N,) whether a crop's object has another number."""
        return ~np.isin(self.tracks, newer.tracks)

    def labels(self) -> NDArray[np.int64]:
        """Returns the classes."""
        return self.classes

    def objects_in_each(self) -> NDArray[np.int64]:
        """Returns ones: a crop shows one object."""
        return np.ones(len(self), np.int64)

    def by_class(self) -> list[NDArray[np.int64]]:
        """Returns for each class that occurs the positions of its crops, rising."""
        return [np.flatnonzero(self.classes == index) for index in np.unique(self.classes)]

    def mix_weights(self, training: Self) -> NDArray[np.float64]:
        """Returns the ``class_mix_weights`` of these crops as the validation part beside ``training``."""
        return class_mix_weights(training.classes, self.classes)


def no_crops(side: int) -> LabelledCrops:
    """Returns an empty set of crops of this side."""
    none = np.zeros(0, np.int64)
    return LabelledCrops(np.zeros((0, side, side, 3), np.uint8), none, none, none)


def concatenate(parts: Sequence[E]) -> E:
    """Concatenates all parts in order; at least one part, all of one kind and side."""
    return parts[0].joined(parts[1:])


def split_by_track_and_time(
    labelled: LabelledCrops, validation_fraction: float = VALIDATION_FRACTION
) -> tuple[LabelledCrops, LabelledCrops]:
    """Split labels into training and validation by track and time, never by crop.

    A track is wholly in one part, so no object is in both. The validation part takes the youngest tracks of
    each class, at least one, whose crops come nearest to ``validation_fraction`` of the class; so it has the
    class mix of the window, and not that of its last seconds. A class with a single track is for training.
    If every class has a single track, all tracks are split as one class; a single track is for training.

    Returns:
        Training and validation, each in the order of ``labelled``.
    """
    tracks, track_of = np.unique(labelled.tracks, return_inverse=True)
    crops_of = np.bincount(track_of, minlength=len(tracks))
    born_us = np.full(len(tracks), np.iinfo(np.int64).max)
    np.minimum.at(born_us, track_of, labelled.t_us)
    class_of = _class_of_tracks(labelled.classes, track_of, len(tracks))
    groups = [np.flatnonzero(class_of == index) for index in np.unique(class_of)]
    if all(len(group) < 2 for group in groups):
        groups = [np.arange(len(tracks))]
    held_out = [_youngest(group, born_us, crops_of, validation_fraction) for group in groups]
    validates = np.isin(track_of, np.concatenate([np.zeros(0, np.int64), *held_out]))
    return labelled.select_rows(np.flatnonzero(~validates)), labelled.select_rows(np.flatnonzero(validates))


def _class_of_tracks(
    classes: NDArray[np.int64], track_of: NDArray[np.int64], tracks: int
) -> NDArray[np.int64]:
    """Returns the majority class of each track; a golden model may label one object differently over time."""
    votes = np.zeros((tracks, int(classes.max(initial=-1)) + 1), np.int64)
    np.add.at(votes, (track_of, classes), 1)
    return votes.argmax(axis=1) if votes.size else np.zeros(0, np.int64)


def _youngest(
    group: NDArray[np.int64], born_us: NDArray[np.int64], crops_of: NDArray[np.int64], fraction: float
) -> NDArray[np.int64]:
    """Returns the youngest of these tracks, as many as come nearest to this fraction of their crops."""
    if len(group) < 2:
        return group[:0]
    youngest_first = group[np.lexsort((group, born_us[group]))[::-1]]
    held = np.cumsum(crops_of[youngest_first])
    # The last place is left out, so that one track at least trains.
    count = 1 + int(np.argmin(np.abs(held[:-1] - fraction * held[-1])))
    return youngest_first[:count]


def class_mix_weights(training: NDArray[np.int64], validation: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns the weights of validation crops that restore the class frequencies of all labels.

    Whole tracks are held out, so the validation part may have half the crops of a rare class and a tenth of
    those of a common one; the plain mean would then be the rare one's accuracy.

    Args:
        training: (N,) classes of the training part.
        validation: (M,) classes of the validation part.

    Returns:
        (M,) positive, of mean 1: crops of the class in both parts over those in the validation part.
    """
    if not len(validation):
        return np.zeros(0)
    count = 1 + max(int(training.max(initial=-1)), int(validation.max()))
    held = np.bincount(validation, minlength=count)
    seen = held + np.bincount(training[training >= 0], minlength=count)
    weights = seen[validation] / held[validation]
    mixed: NDArray[np.float64] = weights / weights.mean()
    return mixed
