"""Which objects of a window the golden model labels, and what they become."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ekya.learning.labelled import LabelledCrops, no_crops, split_by_track_and_time
from ekya.streams.crops import crop_objects
from ekya.workers.collector import CollectedFrame, WindowMaterial

LABELLED_TRACKS = 0.6
"""Part of a window's objects that may be labelled; what is labelled never counts in accuracy."""


class Labels(Protocol):
    """The part of a golden model that labelling needs."""

    def label(
        self, items: Sequence[tuple[NDArray[np.uint8], NDArray[np.float32]]]
    ) -> list[NDArray[np.int64]]:
        """The class of each box (N, 4) in each image, as an index into the fleet's classes."""

    def operations(self, items: Sequence[tuple[NDArray[np.uint8], NDArray[np.float32]]]) -> int:
        """Counted operations of labelling these."""


@dataclass(frozen=True, slots=True, eq=False)
class LabelledPart:
    """Labelled objects with where they were, for the record and for scoring.

    Attributes:
        crops: what training or validation sees; labels index the fleet's classes.
        frames: (N,) int64, index in the stream.
        boxes: (N, 4) float32.
    """

    crops: LabelledCrops
    frames: NDArray[np.int64]
    boxes: NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class StreamLabels:
    """The labels of one stream's window, parted by track and time."""

    window: int
    training: LabelledPart
    validation: LabelledPart


Item = tuple[NDArray[np.uint8], NDArray[np.float32]]


def choose(material: WindowMaterial, limit: int, seed: int) -> list[tuple[CollectedFrame, NDArray[np.int64]]]:
    """A uniform random sample of objects, at most ``limit`` crops: frames with the rows of their boxes.

    Objects are drawn first and their crops second, so that two fifths of the window's objects
    stay unlabelled and count in accuracy.
    """
    rng = np.random.default_rng((seed, material.window))
    tracks = np.unique(np.concatenate([np.zeros(0, np.int64), *(frame.tracks for frame in material.sample)]))
    chosen = rng.permutation(tracks)[: int(len(tracks) * LABELLED_TRACKS)]
    places = [
        (at, row)
        for at, frame in enumerate(material.sample)
        for row in np.flatnonzero(np.isin(frame.tracks, chosen))
    ]
    kept = sorted(rng.permutation(len(places))[:limit].tolist())
    rows: dict[int, list[int]] = {}
    for place in kept:
        at, row = places[place]
        rows.setdefault(at, []).append(int(row))
    return [(material.sample[at], np.array(of, np.int64)) for at, of in sorted(rows.items())]


def items_of(chosen: Sequence[tuple[CollectedFrame, NDArray[np.int64]]]) -> list[Item]:
    """The chosen objects as a golden model takes them."""
    return [(frame.image, frame.boxes[rows]) for frame, rows in chosen]


def label_window(
    material: WindowMaterial,
    chosen: Sequence[tuple[CollectedFrame, NDArray[np.int64]]],
    golden: Labels,
    side: int,
) -> StreamLabels:
    """Labels the chosen objects and parts them 80/20 by track and time (DESIGN §4)."""
    classes = golden.label(items_of(chosen)) if chosen else []
    crops = [crop_objects(frame.image, frame.boxes[rows], side) for frame, rows in chosen]
    everything = LabelledPart(
        crops=_labelled(chosen, crops, classes, side),
        frames=np.concatenate(
            [np.zeros(0, np.int64), *(np.full(len(rows), frame.frame, np.int64) for frame, rows in chosen)]
        ),
        boxes=np.concatenate([np.zeros((0, 4), np.float32), *(frame.boxes[rows] for frame, rows in chosen)]),
    )
    training, validation = split_by_track_and_time(everything.crops)
    return StreamLabels(material.window, _matching(everything, training), _matching(everything, validation))


def _labelled(
    chosen: Sequence[tuple[CollectedFrame, NDArray[np.int64]]],
    crops: Sequence[NDArray[np.uint8]],
    classes: Sequence[NDArray[np.int64]],
    side: int,
) -> LabelledCrops:
    if not chosen:
        return no_crops(side)
    return LabelledCrops(
        crops=np.concatenate(crops),
        classes=np.concatenate(classes).astype(np.int64),
        tracks=np.concatenate([frame.tracks[rows] for frame, rows in chosen]),
        t_us=np.concatenate([np.full(len(rows), frame.t_us, np.int64) for frame, rows in chosen]),
    )


def _matching(everything: LabelledPart, part: LabelledCrops) -> LabelledPart:
    """A part of the crops with where they were: tracks are never split, so tracks say which rows."""
    rows = np.flatnonzero(np.isin(everything.crops.tracks, part.tracks))
    return LabelledPart(everything.crops.take(rows), everything.frames[rows], everything.boxes[rows])
