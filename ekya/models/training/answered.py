"""Answers of a model object by object, from which its confusion and its worst mistakes follow."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekya.core.objects import match_image
from ekya.core.weights import Mistake, Validation
from ekya.models.edge.detection.read_objects import Found
from ekya.models.training.frames import FrameObjects

MOST_MISTAKES = 6
"""Number of mistakes of which pictures are taken."""

NO_CLASS = -1
"""Label of a box on nothing, and answer to an object that was not found."""

_MARGIN = 0.3
"""Part of a box's size that its picture shows on each side."""

_WHOLE = np.array([[0.0, 0.0, 1.0, 1.0]], np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class Answered:
    """What a model answered: a row for each object, and for each box that it found where none is.

    Attributes:
        names: classes that ``labels`` and ``answers`` index.
        labels, answers: (N,) int64; ``NO_CLASS`` for nothing.
        confidence: (N,) float32 of the answers in [0, 1]; 0 where nothing was found.
        images: (N,) int64, row of the image.
        boxes: (N, 4) float32, x0 y0 x1 y1 as fractions of the image.
    """

    names: tuple[str, ...]
    labels: NDArray[np.int64]
    answers: NDArray[np.int64]
    confidence: NDArray[np.float32]
    images: NDArray[np.int64]
    boxes: NDArray[np.float32]

    @property
    def wrong(self) -> NDArray[np.int64]:
        """Rows of the wrong answers, the most confident first."""
        rows = np.flatnonzero(self.labels != self.answers)
        return rows[np.argsort(-self.confidence[rows], kind="stable")]


def answered_crops(
    names: tuple[str, ...],
    labels: NDArray[np.int64],
    answers: NDArray[np.int64],
    confidence: NDArray[np.float32],
) -> Answered:
    """Returns the answers of a classifier to (N,) crops."""
    count = len(labels)
    boxes = np.repeat(_WHOLE, count, axis=0)
    return Answered(names, labels, answers, confidence, np.arange(count), boxes)


def answered_frames(
    names: tuple[str, ...], found: list[Found], objects: tuple[FrameObjects, ...]
) -> Answered:
    """Returns the answers of a detector to N frames, of what it is sure of."""
    each = [_answered_frame(*of) for of in zip(found, objects, strict=True)]
    labels, answers, confidence, boxes = (
        np.concatenate([none, *(of[column] for of in each)])
        for column, none in enumerate(
            (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32), _WHOLE[:0])
        )
    )
    images = np.repeat(np.arange(len(each)), [len(of[0]) for of in each])
    return Answered(names, labels, answers, confidence, images, boxes)


def validation_of(
    before: Answered, after: Answered, images: NDArray[np.uint8]
) -> tuple[Validation, list[NDArray[np.uint8]]]:
    """Returns what two models answered on the same labels, and a picture of each mistake of the second.

    Args:
        before, after: of the models, with the same names.
        images: (N, S, S, 3) uint8 that both were asked about.
    """
    occur = np.unique(np.concatenate([before.labels, before.answers, after.labels, after.answers]))
    order = [*occur[occur != NO_CLASS].tolist(), *occur[occur == NO_CLASS].tolist()]
    name_of = {NO_CLASS: "", **dict(enumerate(after.names))}
    worst = after.wrong[:MOST_MISTAKES].tolist()
    mistakes = tuple(
        Mistake(
            name_of[int(after.labels[row])],
            name_of[int(after.answers[row])],
            round(float(after.confidence[row]), 3),
        )
        for row in worst
    )
    facts = Validation(
        tuple(name_of[index] for index in order),
        _confusion(before, order),
        _confusion(after, order),
        mistakes,
    )
    return facts, [_cut(images[after.images[row]], after.boxes[row]) for row in worst]


def _answered_frame(
    found: Found, objects: FrameObjects
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
    """Returns labels, answers, confidences and boxes of a frame.

    A box takes an object of its class first; of what is left, one of another class.
    """
    found = found.in_areas(objects.areas)
    sure = found.sure
    boxes, classes, confidence = found.boxes[sure], found.classes[sure], found.confidence[sure]
    right = match_image(
        boxes,
        classes.astype(np.int16),
        confidence,
        objects.boxes,
        objects.classes.astype(np.int16),
        objects.doubtful,
    )
    extra = np.flatnonzero(~right.hit & ~right.ignored)
    open_objects = np.setdiff1d(np.arange(len(objects.classes)), right.object)
    # Compared as one class, since any may be confused with any other.
    confused = match_image(
        boxes[extra],
        np.zeros(len(extra), np.int16),
        confidence[extra],
        objects.boxes[open_objects],
        np.zeros(len(open_objects), np.int16),
        objects.doubtful[:0],
    )
    taken = right.object.copy()
    taken[extra[confused.hit]] = open_objects[confused.object[confused.hit]]
    asked = np.concatenate([np.flatnonzero(right.hit), extra])
    # A box without an object has -1, which indexes the appended value.
    label = np.where(taken >= 0, np.append(objects.classes, NO_CLASS)[taken], NO_CLASS)[asked]
    missed = np.setdiff1d(open_objects, taken)
    return (
        np.concatenate([label, objects.classes[missed]]),
        np.concatenate([classes[asked], np.full(len(missed), NO_CLASS)]),
        np.concatenate([confidence[asked], np.zeros(len(missed), np.float32)]),
        np.concatenate([boxes[asked], objects.boxes[missed]]),
    )


def _confusion(answered: Answered, order: list[int]) -> tuple[tuple[int, ...], ...]:
    place = {index: at for at, index in enumerate(order)}
    counts = np.zeros((len(order), len(order)), np.int64)
    for label, answer in zip(answered.labels.tolist(), answered.answers.tolist(), strict=True):
        counts[place[label], place[answer]] += 1
    return tuple(map(tuple, counts.tolist()))


def _cut(image: NDArray[np.uint8], box: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Returns the part of an image that shows a box with some of what is around it."""
    side = len(image)
    width, height = box[2] - box[0], box[3] - box[1]
    x0, y0 = max(int((box[0] - _MARGIN * width) * side), 0), max(int((box[1] - _MARGIN * height) * side), 0)
    x1 = min(int(np.ceil((box[2] + _MARGIN * width) * side)), side)
    y1 = min(int(np.ceil((box[3] + _MARGIN * height) * side)), side)
    return image[y0 : max(y1, y0 + 1), x0 : max(x1, x0 + 1)]
