"""Selects the objects of a window that the golden model labels, and makes training labels of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ekya.core.objects import DOUBTFUL
from ekya.core.records import LabelledBoxes
from ekya.models.golden.detections import Question
from ekya.models.golden.golden_model import Labels
from ekya.models.training.frames import LabelledFrames
from ekya.models.training.labelled import (
    VALIDATION_FRACTION,
    Examples,
    LabelledCrops,
    concatenate,
    no_crops,
    split_by_track_and_time,
)
from ekya.pipeline.collector import CollectedFrame, WindowMaterial
from ekya.planning.profiling.label_policy import LABEL_POLICIES, POOL, UNIFORM, Candidates, LabelPolicy, Order

UNIFORM_POLICY = LABEL_POLICIES[UNIFORM]

LABELLED_TRACKS = 0.6
"""Part of a window's objects that may be labelled; labelled objects never count in accuracy."""


LABELLED_PICTURES = 12
"""Pictures of a window that a detector analyses for labels. It is charged per picture, not per object.
Pictures that its network analysed already, to propose their objects, cost nothing more."""


@dataclass(frozen=True, slots=True, eq=False)
class LabelledPart:
    """Labelled examples with their positions, for the record and for scoring.

    Attributes:
        examples: for training or validation; labels index the fleet's classes.
        frames: (N,) int64, index in the stream.
        boxes: (N, 4) float32, in pixels: of a crop, or the whole of a frame.
    """

    examples: Examples
    frames: NDArray[np.int64]
    boxes: NDArray[np.float32]

    def take(self, rows: NDArray[np.int64]) -> "LabelledPart":
        """Returns these rows, in this order."""
        return LabelledPart(self.examples.take(rows), self.frames[rows], self.boxes[rows])

    def objects(self) -> tuple[LabelledBoxes, NDArray[np.int64]]:
        """Returns the positions and classes of all labelled objects.

        A frame without objects is one empty box of class ``DOUBTFUL``, so that it is known to be labelled.
        """
        if not isinstance(self.examples, LabelledFrames):
            return LabelledBoxes(self.frames, self.boxes), self.examples.labels()
        boxes, classes, frames = [np.zeros((0, 4), np.float32)], [np.zeros(0, np.int64)], [self.frames[:0]]
        for of, frame, whole in zip(self.examples.objects, self.frames, self.boxes, strict=True):
            found = len(of.classes)
            boxes.append(of.boxes * np.tile(whole[2:], 2) if found else np.zeros((1, 4), np.float32))
            classes.append(of.classes if found else np.array([DOUBTFUL], np.int64))
            frames.append(np.full(max(found, 1), frame))
        return LabelledBoxes(np.concatenate(frames), np.concatenate(boxes)), np.concatenate(classes)


@dataclass(frozen=True, slots=True, eq=False)
class StreamLabels:
    """The labels of one stream's window, split into training and validation by track and time.

    Attributes:
        pooled: older labels and those of other streams that show the same; retrainings learn from them, too.
    """

    window: int
    training: LabelledPart
    validation: LabelledPart
    pooled: Examples | None = None

    @property
    def examples(self) -> Examples:
        """The examples of both parts, copied together."""
        return concatenate([self.training.examples, self.validation.examples])

    @property
    def count(self) -> int:
        """Number of examples in both parts."""
        return len(self.training.examples) + len(self.validation.examples)

    def pooled_with(self, others: Sequence[Examples]) -> "StreamLabels":
        """Returns the labels with others to learn from as well; different objects keep different numbers."""
        own = self.examples
        after, pooled = int(own.tracks.max(initial=-1)) + 1, []
        for other in others:
            _, track = np.unique(other.tracks, return_inverse=True)
            pooled.append(other.with_tracks(after + track))
            after += int(track.max(initial=-1)) + 1
        return replace(self, pooled=concatenate(pooled)) if pooled else self

    @property
    def can_train(self) -> bool:
        """True if there are enough objects to train and to validate on."""
        objects = [part.examples.objects_in_each().sum() for part in (self.training, self.validation)]
        return bool(objects[0] > 1 and objects[1] > 0)

    @property
    def objects_in_frames(self) -> int | None:
        """Number of objects in the labelled frames; None where crops are labelled."""
        parts = [self.training.examples, self.validation.examples]
        if not all(isinstance(part, LabelledFrames) for part in parts):
            return None
        return sum(int(part.objects_in_each().sum()) for part in parts)

    def different_objects(self, background: int | None) -> int:
        """Returns the number of different objects in both parts, without background; of frames, of these."""
        tracks = np.concatenate([self.training.examples.tracks, self.validation.examples.tracks])
        if background is not None and self.objects_in_frames is None:
            labels = np.concatenate([self.training.examples.labels(), self.validation.examples.labels()])
            tracks = tracks[labels != background]
        return len(np.unique(tracks))

    def histogram(self, classes: int, background: int | None) -> tuple[int, ...]:
        """Returns the number of labelled objects of each of the fleet's classes, without background."""
        labelled = np.concatenate([self.training.examples.labels(), self.validation.examples.labels()])
        counts = np.bincount(labelled[labelled != background], minlength=classes)
        return tuple(counts.tolist())


Chosen = Sequence[tuple[CollectedFrame, NDArray[np.int64]]]
"""Frames with the rows of the boxes that were chosen in them."""

Embed = Callable[[NDArray[np.uint8]], tuple[NDArray[np.float32], NDArray[np.float32]]]
"""Serving model as a function of crops: returns confidences (N,) and features (N, F)."""


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """Objects that the golden model is asked about, and how the policy chose them.

    Attributes:
        chosen: the objects, by frame.
        rank: (N,) int64, place of each in the policy's order; in the order of ``chosen``.
        by_chance: (N,) bool, whether an object was chosen by chance alone.
        classified: number of crops that the serving model classified for the choice.
    """

    chosen: Chosen
    rank: NDArray[np.int64]
    by_chance: NDArray[np.bool_]
    classified: int

    @property
    def questions(self) -> list[Question]:
        """The objects as questions to a golden model."""
        return [frame.take(rows).question for frame, rows in self.chosen]


def choose(
    material: WindowMaterial,
    limit: int,
    seed: int,
    policy: LabelPolicy = UNIFORM_POLICY,
    embed: Embed | None = None,
) -> Selection:
    """Chooses at most ``limit`` crops in the policy's order.

    Objects are drawn first and their crops second, so that two fifths of the window's objects stay unlabelled
    and count in accuracy under every policy.
    """
    rng = np.random.default_rng((seed, material.window))
    places = _places(material, rng)
    order, classified = _ordered(material, places, POOL * limit, policy, embed, rng)
    return _selection(material, places, order, np.sort(order.rows[:limit]), classified)


def choose_pictures(
    material: WindowMaterial,
    limit: int,
    seed: int,
    policy: LabelPolicy = UNIFORM_POLICY,
    embed: Embed | None = None,
    pool: int = 0,
) -> Selection:
    """Chooses the objects of all pictures with known detections and of ``limit`` others.

    As in ``choose``, only part of the window's objects may be labelled. A policy that uses the serving model
    classifies at most ``pool`` objects with it.
    """
    rng = np.random.default_rng((seed, material.window))
    places = _places(material, rng)
    if policy.asks_model:
        order, classified = _ordered(material, places, pool, policy, embed, rng)
        shown = order.pictures(_candidates(material, places, None))
    else:
        # Every picture is equally likely, independent of its number of objects.
        shown, classified = rng.permutation(np.unique([at for at, _ in places])), 0
        order = Order(np.arange(len(places)), np.ones(len(places), np.bool_))
    known = [at for at in shown if material.sample[at].found is not None]
    pictures = {*known, *[at for at in shown if material.sample[at].found is None][:limit]}
    rows = np.array([row for row, (at, _) in enumerate(places) if at in pictures], np.int64)
    return _selection(material, places, order, rows, classified)


def _ordered(
    material: WindowMaterial,
    places: Sequence[tuple[int, int]],
    pool: int,
    policy: LabelPolicy,
    embed: Embed | None,
    rng: np.random.Generator,
) -> tuple[Order, int]:
    """Returns the policy's order of the objects, and the number that the serving model classified.

    If the policy uses the model, a random pool is classified; the other objects follow it in random order.
    """
    if not policy.asks_model or embed is None:
        return policy.order(_candidates(material, places, None), rng), 0
    drawn = rng.permutation(len(places))
    asked, others = np.sort(drawn[:pool]), drawn[pool:]
    order = policy.order(_candidates(material, [places[row] for row in asked.tolist()], embed), rng)
    rows = np.concatenate([asked[order.rows], others])
    return Order(rows, np.concatenate([order.by_chance, np.ones(len(others), np.bool_)])), len(asked)


def _candidates(
    material: WindowMaterial, places: Sequence[tuple[int, int]], embed: Embed | None
) -> Candidates:
    pictures = np.array([at for at, _ in places], np.int64)
    if embed is None or not places:
        return Candidates(pictures, np.zeros(len(places), np.float32), np.zeros((len(places), 0), np.float32))
    return Candidates(pictures, *embed(np.stack([material.sample[at].crops[row] for at, row in places])))


def _selection(
    material: WindowMaterial,
    places: Sequence[tuple[int, int]],
    order: Order,
    rows: NDArray[np.int64],
    classified: int,
) -> Selection:
    """Builds a selection of these rows of ``places``, in rising order."""
    rank = np.empty(len(places), np.int64)
    rank[order.rows] = np.arange(len(places))
    return Selection(
        _by_frame(material, [places[row] for row in rows.tolist()]),
        rank[rows],
        order.by_chance[rank[rows]],
        classified,
    )


def _places(material: WindowMaterial, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Returns the positions of objects that may be labelled: index of the frame, row of the box."""
    tracks = np.unique(np.concatenate([np.zeros(0, np.int64), *(frame.tracks for frame in material.sample)]))
    chosen = rng.permutation(tracks)[: int(len(tracks) * LABELLED_TRACKS)]
    return [
        (at, int(row))
        for at, frame in enumerate(material.sample)
        for row in np.flatnonzero(np.isin(frame.tracks, chosen))
    ]


def _by_frame(material: WindowMaterial, places: Sequence[tuple[int, int]]) -> Chosen:
    rows: dict[int, list[int]] = {}
    for at, row in places:
        rows.setdefault(at, []).append(row)
    return [(material.sample[at], np.array(of, np.int64)) for at, of in sorted(rows.items())]


def label_window(
    material: WindowMaterial, selection: Selection, golden: Labels, side: int, limit: int, seed: int
) -> StreamLabels:
    """Labels the chosen objects, keeps the usable ones, and splits them 80/20 by track and time.

    Background is used only for training: accuracy counts objects, so validation accuracy must too.

    Args:
        material: of the window.
        selection: objects to label.
        golden: the golden model.
        side: of the crops, in pixels.
        limit: upper bound on the objects that are kept.
        seed: of the random choice among more than ``limit`` objects.
    """
    chosen = selection.chosen
    classes = golden.label(selection.questions) if chosen else []
    crops = [frame.crops[rows] for frame, rows in chosen]
    labelled = _labelled(chosen, crops, classes, side)
    everything = LabelledPart(
        examples=labelled,
        frames=np.concatenate(
            [np.zeros(0, np.int64), *(np.full(len(rows), frame.frame, np.int64) for frame, rows in chosen)]
        ),
        boxes=np.concatenate([np.zeros((0, 4), np.float32), *(frame.boxes[rows] for frame, rows in chosen)]),
    )
    rng = np.random.default_rng((seed, material.window))
    rows = _of_use(labelled.classes, golden.background, limit, selection, rng)
    kept, taken, by_chance = everything.take(rows), labelled.take(rows), selection.by_chance[rows]
    objects = np.ones(len(taken), np.bool_)
    if golden.background is not None:
        objects = taken.classes != golden.background
    may_validate = objects & by_chance
    # Only objects chosen by chance validate, so a larger part of them makes up for the others.
    part = VALIDATION_FRACTION * (int(objects.sum()) / max(int(may_validate.sum()), 1))
    _, held_out = split_by_track_and_time(taken.take(np.flatnonzero(may_validate)), min(part, 0.5))
    validates = np.isin(taken.tracks, held_out.tracks)
    return StreamLabels(
        material.window,
        kept.take(np.flatnonzero(~validates)),
        kept.take(np.flatnonzero(validates & may_validate)),
    )


def _of_use(
    classes: NDArray[np.int64],
    background: int | None,
    limit: int,
    selection: Selection,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Returns rows of at most ``limit`` objects, the first in order, and at most as many of background.

    Most proposals on a street are background; a model trained on their natural frequency would learn to
    predict nothing else.
    """
    objects = np.flatnonzero((classes >= 0) & (classes != background))
    if selection.classified:
        objects = objects[np.argsort(selection.rank[objects])][:limit]
    else:
        objects = rng.permutation(objects)[:limit]
    others = np.flatnonzero(classes == background) if background is not None else objects[:0]
    return np.sort(np.concatenate([objects, rng.permutation(others)[: len(objects)]]))


def _labelled(
    chosen: Chosen,
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
