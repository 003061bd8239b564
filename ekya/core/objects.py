"""Bounding boxes, x0 y0 x1 y1 in pixels with x1 and y1 exclusive, and their matches to a frame's objects.

The predictions of a frame choose in falling confidence; of equal confidences the first chooses first. Each
takes the object of its class that it overlaps most among those not yet taken, at ``SAME_OBJECT_IOU`` or more;
of equal overlaps the first object. A prediction that took no object and overlaps a doubtful box as much,
whatever its class, is ignored: it is neither right nor wrong.

A prediction's match depends only on predictions that are more confident. So the matches of those above any
confidence are the same with and without the others.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekya.core.records import iterate_pairs, spans_of

SAME_OBJECT_IOU = 0.5
"""Minimum IoU of two boxes of the same object."""


def iou_matrix(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
    """Returns the intersection over union of every box of ``a`` (N, 4) and of ``b`` (M, 4): (N, M).

    Empty boxes overlap nothing.
    """
    overlap = _overlap(a, b, 0) * _overlap(a, b, 1)
    area_a, area_b = _extent(a, 0) * _extent(a, 1), _extent(b, 0) * _extent(b, 1)
    union = area_a[:, None] + area_b[None, :] - overlap
    ratio: NDArray[np.float32] = np.divide(overlap, union, out=np.zeros_like(overlap), where=union > 0)
    return ratio.astype(np.float32)


def _overlap(a: NDArray[np.float32], b: NDArray[np.float32], axis: int) -> NDArray[np.float32]:
    """Returns (N, M), the length that every two boxes share along an axis; plane by plane, which is fast."""
    low = np.maximum(a[:, None, axis], b[None, :, axis])
    high = np.minimum(a[:, None, axis + 2], b[None, :, axis + 2])
    shared: NDArray[np.float32] = np.maximum(high - low, 0.0)
    return shared


def _extent(boxes: NDArray[np.float32], axis: int) -> NDArray[np.float32]:
    length: NDArray[np.float32] = np.maximum(boxes[:, axis + 2] - boxes[:, axis], 0.0)
    return length


def iou(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float64]:
    """Returns the intersection over union of boxes, row by row.

    Args:
        a, b: (P, 4) x0 y0 x1 y1.

    Returns:
        (P,) in [0, 1]; 0 if both boxes are empty.
    """
    # In float64, so that rounding does not decide about an overlap of exactly one half.
    a64, b64 = a.astype(np.float64), b.astype(np.float64)
    size = np.minimum(a64[:, 2:], b64[:, 2:]) - np.maximum(a64[:, :2], b64[:, :2])
    intersection: NDArray[np.float64] = np.prod(np.maximum(size, 0.0), axis=1)
    union = _area(a64) + _area(b64) - intersection
    overlap: NDArray[np.float64] = np.zeros(len(union))
    np.divide(intersection, union, out=overlap, where=union > 0)
    return overlap


def _area(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    area: NDArray[np.float64] = np.prod(np.maximum(boxes[:, 2:] - boxes[:, :2], 0.0), axis=1)
    return area


BACKGROUND = "background"
"""A fleet's last class where its golden model detects objects itself: a crop without a relevant object.

No data set has boxes of this class.
"""

DOUBTFUL = -1
"""Class of a reference box that the golden model half believes in: no object, and no mistake to detect it."""


SURE = 0.5
"""Confidence from which a prediction counts as detected; the same for every model, so that they compare."""


@dataclass(frozen=True, slots=True, eq=False)
class FrameBoxes:
    """Boxes of F frames, N in total; those of frame i are ``offsets[i]:offsets[i + 1]``.

    Attributes:
        offsets: (F + 1,) int64.
        boxes: (N, 4) float32, x0 y0 x1 y1.
        classes: (N,) integers; ``DOUBTFUL`` for a doubtful box of a reference.
    """

    offsets: NDArray[np.int64]
    boxes: NDArray[np.float32]
    classes: NDArray[np.int16]


@dataclass(frozen=True, slots=True, eq=False)
class Matches:
    """Matches of N predictions. Those that are neither hits nor ignored are false positives.

    Attributes:
        object: (N,) int64, index of the object that each took; -1 for none.
        ignored: (N,) bool, without an object, but on a doubtful box.
    """

    object: NDArray[np.int64]
    ignored: NDArray[np.bool_]

    @property
    def hit(self) -> NDArray[np.bool_]:
        """(N,) bool: true positives."""
        hit: NDArray[np.bool_] = self.object >= 0
        return hit


def match_image(
    boxes: NDArray[np.float32],
    classes: NDArray[np.int16],
    confidence: NDArray[np.float32],
    objects: NDArray[np.float32],
    object_classes: NDArray[np.int16],
    doubtful: NDArray[np.float32],
) -> Matches:
    """Matches the predictions of one image to its objects.

    Args:
        boxes: (N, 4) of the predictions.
        classes, confidence: (N,) of the predictions.
        objects: (M, 4) boxes.
        object_classes: (M,).
        doubtful: (K, 4) boxes.
    """
    return match_frames(
        FrameBoxes(np.array([0, len(boxes)]), boxes, classes),
        confidence,
        FrameBoxes(
            np.array([0, len(objects) + len(doubtful)]),
            np.concatenate([objects, doubtful]),
            np.concatenate([object_classes, np.full(len(doubtful), DOUBTFUL, np.int16)]),
        ),
    )


def match_frames(predicted: FrameBoxes, confidence: NDArray[np.float32], reference: FrameBoxes) -> Matches:
    """Matches the predictions of F frames, each to the objects of its own frame.

    Args:
        predicted: N boxes.
        confidence: (N,).
        reference: objects and doubtful boxes of the same F frames.
    """
    frame = np.repeat(np.arange(len(predicted.offsets) - 1), np.diff(predicted.offsets))
    ignored = np.zeros(len(frame), np.bool_)
    candidates = [_NO_CANDIDATES]
    for some, others in iterate_pairs(*spans_of(frame, reference.offsets)):
        classes = reference.classes[others]
        comparable = (classes == DOUBTFUL) | (classes == predicted.classes[some])
        left, right = some[comparable], others[comparable]
        overlap = iou(predicted.boxes[left], reference.boxes[right])
        near = overlap >= SAME_OBJECT_IOU
        left, right, overlap = left[near], right[near], overlap[near]
        doubtful = reference.classes[right] == DOUBTFUL
        ignored[left[doubtful]] = True
        candidates.append(_Candidates(left[~doubtful], right[~doubtful], overlap[~doubtful]))
    taken = _taken(_joined(candidates), confidence, len(reference.classes))
    return Matches(taken, ignored & (taken < 0))


@dataclass(frozen=True, slots=True, eq=False)
class _Candidates:
    """P pairs of a prediction and an object that it may take.

    Attributes:
        prediction, object: (P,) int64.
        overlap: (P,) float64.
    """

    prediction: NDArray[np.int64]
    object: NDArray[np.int64]
    overlap: NDArray[np.float64]


_NO_CANDIDATES = _Candidates(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float64))


def _joined(parts: list[_Candidates]) -> _Candidates:
    return _Candidates(
        np.concatenate([part.prediction for part in parts]),
        np.concatenate([part.object for part in parts]),
        np.concatenate([part.overlap for part in parts]),
    )


def _taken(candidates: _Candidates, confidence: NDArray[np.float32], objects: int) -> NDArray[np.int64]:
    """Returns the (N,) object that each prediction takes, -1 for none.

    In each round every prediction that is first in line for its best free object takes it. No later one can
    take it away, so the result is that of choosing one after the other. Most frames need one or two rounds,
    and none more than it has objects.
    """
    # The last key counts most, and the others break its ties.
    order = np.lexsort(
        (candidates.object, -candidates.overlap, candidates.prediction, -confidence[candidates.prediction])
    )
    prediction, wanted = candidates.prediction[order], candidates.object[order]
    taken = np.full(len(confidence), -1, np.int64)
    free = np.ones(objects, np.bool_)
    first_in_line = np.empty(objects, np.int64)
    while len(prediction):
        place = np.arange(len(prediction))
        # Assigned backwards, so that the first pair of each object remains.
        first_in_line[wanted[::-1]] = place[::-1]
        favourite = np.append(True, prediction[1:] != prediction[:-1])
        settled = favourite & (first_in_line[wanted] == place)
        taken[prediction[settled]] = wanted[settled]
        free[wanted[settled]] = False
        open_ = (taken[prediction] < 0) & free[wanted]
        prediction, wanted = prediction[open_], wanted[open_]
    return taken
