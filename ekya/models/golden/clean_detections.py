"""Turns what a foreign network answers into detections that the rest of Ekya can rely on."""

import numpy as np

from ekya.models.golden.detections import Detections
from ekya.models.golden.nms import nms

MOST_BOXES = 300
"""Upper bound of detections in one image."""

_MOST_CANDIDATES = 1000  # Suppression compares all pairs: 50 ms. In crowds an object has ten boxes.


def suppressed(
    found: Detections, width: int, height: int, class_count: int, min_score: float, max_iou: float
) -> Detections:
    """Returns the sound and distinct ones of a network's answers, best first, ``MOST_BOXES`` at most.

    Left out are detections with a value that is not finite, with a class that does not exist, or without area
    inside the image; of several with exactly the same box, all but the best, since a box shows one object and
    an object has one class; and of a class, those that overlap a better one.

    Args:
        found: answers in pixels of the image, in any order; all values are possible.
        width, height: of the image, pixels.
        class_count: number of classes.
        min_score: detections below are dropped.
        max_iou: the largest allowed overlap of two boxes of one class.
    """
    usable = np.isfinite(found.scores) & (found.scores >= min_score) & np.isfinite(found.boxes).all(axis=1)
    rows = np.flatnonzero(usable & (found.classes >= 0) & (found.classes < class_count))
    best = found.take(rows[np.argsort(-found.scores[rows], kind="stable")[:_MOST_CANDIDATES]])
    # Before boxes are clipped, which makes different ones equal.
    _, first = np.unique(best.boxes, axis=0, return_index=True)
    one_each = best.take(np.sort(first))
    boxes = np.clip(one_each.boxes, 0.0, [width, height, width, height]).astype(np.float32)
    sound = Detections(boxes, one_each.classes, np.clip(one_each.scores, 0.0, 1.0).astype(np.float32))
    sound = sound.take((boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1]))
    return sound.take(nms(sound.boxes, sound.scores, sound.classes, max_iou)[:MOST_BOXES])
