"""Labels of a window: what is labelled, how it is split, and with which other labels it is pooled."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from ekya.core.objects import DOUBTFUL
from ekya.core.records import LabelledBoxes
from ekya.core.units import StreamId
from ekya.core.weights import SceneOf
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
from ekya.planning.adaptation.label_pooling import AGEING, LABELLINGS, MOST_POOLED

if TYPE_CHECKING:
    from ekya.models.edge.model import EdgeModel

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

    def select_objects(self, rows: NDArray[np.int64]) -> "LabelledPart":
        """Returns these rows, in this order."""
        return LabelledPart(self.examples.select_rows(rows), self.frames[rows], self.boxes[rows])

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

    def histogram(self, classes: int, background: int | None) -> tuple[int, ...]:
        """Returns the number of labelled objects of each of the fleet's classes, without background."""
        labelled = np.concatenate([self.training.examples.labels(), self.validation.examples.labels()])
        counts = np.bincount(labelled[labelled != background], minlength=classes)
        return tuple(counts.tolist())


Chosen = Sequence[tuple[CollectedFrame, NDArray[np.int64]]]
"""Frames with the rows of the boxes that were chosen in them."""


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """Objects that the golden model is asked about, by frame."""

    chosen: Chosen

    @property
    def questions(self) -> list[Question]:
        return [frame.select_objects(rows).question for frame, rows in self.chosen]


def choose(material: WindowMaterial, limit: int, seed: int) -> Selection:
    """Chooses at most ``limit`` crops, each with equal probability.

    Objects are drawn first and their crops second, so that two fifths of the window's objects stay unlabelled
    and count in accuracy.
    """
    rng = np.random.default_rng((seed, material.window))
    places = _places(material, rng)
    rows = np.sort(rng.permutation(len(places))[:limit])
    return Selection(_by_frame(material, [places[row] for row in rows.tolist()]))


def choose_pictures(material: WindowMaterial, limit: int, seed: int) -> Selection:
    """Chooses the objects of all pictures with known detections and of ``limit`` others.

    As in ``choose``, only part of the window's objects may be labelled. Every picture is equally likely,
    independent of its number of objects.
    """
    rng = np.random.default_rng((seed, material.window))
    places = _places(material, rng)
    shown = rng.permutation(np.unique([at for at, _ in places]))
    known = [at for at in shown if material.sample[at].found is not None]
    pictures = {*known, *[at for at in shown if material.sample[at].found is None][:limit]}
    return Selection(_by_frame(material, [place for place in places if place[0] in pictures]))


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
    classes = golden.label_boxes(selection.questions) if chosen else []
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
    rows = _of_use(labelled.classes, golden.background, limit, rng)
    kept, taken = everything.select_objects(rows), labelled.select_rows(rows)
    objects = np.ones(len(taken), np.bool_)
    if golden.background is not None:
        objects = taken.classes != golden.background
    _, held_out = split_by_track_and_time(taken.select_rows(np.flatnonzero(objects)), VALIDATION_FRACTION)
    validates = np.isin(taken.tracks, held_out.tracks)
    return StreamLabels(
        material.window,
        kept.select_objects(np.flatnonzero(~validates)),
        kept.select_objects(np.flatnonzero(validates & objects)),
    )


def _of_use(
    classes: NDArray[np.int64], background: int | None, limit: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Returns rows of at most ``limit`` objects, and at most as many of background.

    Most proposals on a street are background; a model trained on their natural frequency would learn to
    predict nothing else.
    """
    objects = rng.permutation(np.flatnonzero((classes >= 0) & (classes != background)))[:limit]
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


class LabelPool:
    """Keeps the newest labels of each stream, those that it is trained on now included."""

    def __init__(self) -> None:
        self._newest_first: dict[StreamId, list[StreamLabels]] = {}
        self._served: dict[StreamId, tuple[ref[EdgeModel], int]] = {}

    def add(self, stream: StreamId, labels: StreamLabels, model: "EdgeModel | None" = None) -> None:
        """Adds new labels of a stream, which ``model`` serves, if that is known; the oldest are dropped."""
        self._newest_first[stream] = [labels, *self._newest_first.get(stream, [])][:LABELLINGS]
        if model is None:
            self._served.pop(stream, None)
        else:
            self._served[stream] = ref(model), self._not_learnt(stream, model) + 1

    def forget_stream(self, stream: StreamId) -> None:
        """Forgets the labels of a stream."""
        self._newest_first.pop(stream, None)
        self._served.pop(stream, None)

    def _not_learnt(self, stream: StreamId, model: "EdgeModel") -> int:
        """Returns the number of newest labellings that were added while a model served, and goes on to."""
        served, count = self._served.get(stream, (None, 0))
        return count if served is not None and served() is model else 0

    def not_learnt(
        self, stream: StreamId, labels: StreamLabels, model: "EdgeModel", since_us: int | None = None
    ) -> Examples:
        """Returns new labels without those of objects from which the model that serves may have learnt.

        These are what earlier labels of a stream have shown, but for those that were added while this model
        served: of a scene that is new since a time, these show it as well. Labels come before they are added.
        """
        before, served = self._newest_first.get(stream, []), self._not_learnt(stream, model)
        parts = [labels.examples]
        if since_us is not None:
            same = (one.examples for one in before[:served])
            parts += [one.select_rows(np.flatnonzero(one.t_us >= since_us)) for one in same]
        examples = concatenate(parts)
        for earlier in before[served:]:
            examples = examples.select_rows(np.flatnonzero(examples.apart_from(earlier.examples)))
        return examples

    def join_labels(
        self, stream: StreamId, scenes: Sequence[SceneOf]
    ) -> tuple[StreamLabels, tuple[StreamId, ...]]:
        """Returns a stream's newest labels with others of these scenes, and the streams whose they are.

        Scenes come in order, up to ``MOST_POOLED``.
        """
        newest = self._newest_first[stream][0]
        left = MOST_POOLED * newest.count
        found: dict[StreamId, list[Examples]] = {}
        for other, age, usable in self._usable(stream, scenes):
            rows = np.random.default_rng((newest.window, age)).permutation(len(usable))
            part = usable.select_rows(np.sort(rows[: min(round(len(rows) * AGEING**age), left)]))
            if len(part):
                left -= len(part)
                found.setdefault(other, []).append(part)
        return newest.pooled_with([concatenate(parts) for parts in found.values()]), tuple(found)

    def _usable(
        self, stream: StreamId, scenes: Sequence[SceneOf]
    ) -> Iterator[tuple[StreamId, int, Examples]]:
        """Yields what shows a scene: whose it is, how many of its labellings are newer, and the examples.

        Of a stream's own earlier labels those of objects that the newest ones show are left out, so that no
        model is measured on what it has learned.
        """
        newest, *earlier = self._newest_first[stream]
        shown = newest.examples
        for scene in scenes:
            own = scene.stream == stream
            # Another stream's older labels add less than its newest, and cost as much.
            kept = earlier if own else self._newest_first.get(scene.stream, [])[:1]
            for age, labels in enumerate(kept):
                examples = labels.examples
                usable = examples.t_us >= scene.since_us
                if own:
                    usable &= examples.apart_from(shown)
                yield scene.stream, age, examples.select_rows(np.flatnonzero(usable))
