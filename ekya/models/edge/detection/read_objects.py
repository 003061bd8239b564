"""Reads the objects of images from the boxes of a detector: threshold, the fleet's classes, suppression."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ekya.core.areas import Areas
from ekya.core.objects import SURE
from ekya.models.edge.detection.detector import Decoded
from ekya.models.golden.detections import nms

LEAST_CONFIDENCE = 0.2
"""Objects below are dropped, and so not ranked by AP50: a frame has dozens of them, and each is stored."""

MOST_OBJECTS, MOST_CANDIDATES = 100, 300
MAX_IOU = 0.45


@dataclass(frozen=True, slots=True, eq=False)
class BoxCandidates:
    """A boxes of each of N images with their best class, before the fleet's classes are known.

    Attributes:
        boxes: (N, A, 4) float32, x0 y0 x1 y1 as fractions of the image; they may reach over its edge.
        scores: (N, A) float32 in [0, 1], of the best class.
        outputs: (N, A) int64, the model's output that stands for it.
    """

    boxes: NDArray[np.float32]
    scores: NDArray[np.float32]
    outputs: NDArray[np.int64]

    @staticmethod
    def of(decoded: Decoded) -> "BoxCandidates":
        """Returns what torch decoded, on any device."""
        return BoxCandidates.of_rows(rows_of(decoded))

    @staticmethod
    def of_rows(rows: Tensor) -> "BoxCandidates":
        """Returns what ``rows_of`` joined, on any device: one copy to the host."""
        host = rows.cpu().numpy()
        return BoxCandidates(host[..., :4], host[..., 4], host[..., 5].astype(np.int64))

    @staticmethod
    def concatenate(parts: "Sequence[BoxCandidates]") -> "BoxCandidates":
        """Returns the boxes of the images of all parts, at least one; all images have as many boxes."""
        if len(parts) == 1:
            return parts[0]
        columns = zip(*((of.boxes, of.scores, of.outputs) for of in parts), strict=True)
        return BoxCandidates(*map(np.concatenate, columns))

    def select_images(self, images: slice) -> "BoxCandidates":
        """Returns the boxes of these images."""
        return BoxCandidates(self.boxes[images], self.scores[images], self.outputs[images])


def rows_of(decoded: Decoded) -> Tensor:
    """Returns (N, A, 6) float32: box, score and output. A float holds every output's number exactly."""
    columns = (decoded.boxes, decoded.scores[..., None], decoded.outputs[..., None])
    return torch.cat([column.float() for column in columns], dim=2)


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Objects that a detector found in one image, the most confident first.

    Attributes:
        boxes: (N, 4) float32, x0 y0 x1 y1 as fractions of the image, within it.
        classes: (N,) int64, index into the fleet's classes.
        confidence: (N,) float32 in [0, 1].
    """

    boxes: NDArray[np.float32]
    classes: NDArray[np.int64]
    confidence: NDArray[np.float32]

    @property
    def sure(self) -> NDArray[np.bool_]:
        """(N,) bool, which are confident enough to count."""
        return self.confidence >= SURE

    def in_areas(self, areas: Areas) -> "Found":
        """Returns the objects that count."""
        counts = areas.find_counting(self.boxes)
        return Found(self.boxes[counts], self.classes[counts], self.confidence[counts])


def fleet_outputs(outputs: tuple[str, ...], fleet: tuple[str, ...]) -> NDArray[np.int64]:
    """Returns (C,) the fleet's class of each of a model's outputs, -1 for one that the fleet lacks."""
    return np.array([fleet.index(name) if name in fleet else -1 for name in outputs], np.int64)


def found_in(candidates: BoxCandidates, in_fleet: NDArray[np.int64], threshold: float = SURE) -> list[Found]:
    """Returns the objects of each image, at most ``MOST_OBJECTS``, after class-wise suppression.

    A box is of its best class among all that the model knows, and is dropped if the fleet does not have it,
    if a number in it is not finite, or if nothing of it is inside the image. Confidences are powers of the
    scores, so that the model's own threshold is ``SURE``, which holds for every model.

    Args:
        candidates: of N images.
        in_fleet: as ``fleet_outputs`` returned it for the model.
        threshold: score that counts as ``SURE``.
    """
    scores = candidates.scores if threshold == SURE else calibrated(candidates.scores, threshold)
    each = zip(candidates.boxes, scores, candidates.outputs, strict=True)
    return [_found(*of, in_fleet) for of in each]


def calibrated(scores: NDArray[np.float32], threshold: float) -> NDArray[np.float32]:
    """Returns the scores raised to the power that makes a threshold ``SURE``."""
    # Broken weights may give any score; ``_found`` drops what becomes infinite or no number.
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(scores ** (np.log(SURE) / np.log(threshold)), np.float32)


def _found(
    boxes: NDArray[np.float32],
    scores: NDArray[np.float32],
    outputs: NDArray[np.int64],
    in_fleet: NDArray[np.int64],
) -> Found:
    # Nearly all boxes end here; a score that is not a number does too.
    rows = np.flatnonzero((scores >= LEAST_CONFIDENCE) & (scores < np.inf))
    if len(rows) == 0:
        return Found(boxes[:0], in_fleet[:0], scores[:0])
    inside, classes = np.clip(boxes[rows], 0.0, 1.0), in_fleet[outputs[rows]]
    usable = (
        (classes >= 0) & np.isfinite(boxes[rows]).all(axis=1) & (inside[:, 2:] > inside[:, :2]).all(axis=1)
    )
    kept = np.flatnonzero(usable)
    # Suppression compares all pairs.
    kept = kept[np.argsort(-scores[rows[kept]], kind="stable")[:MOST_CANDIDATES]]
    inside, classes, confidence = inside[kept], classes[kept], np.minimum(scores[rows[kept]], 1.0)
    left = nms(inside, confidence, classes, MAX_IOU)[:MOST_OBJECTS]
    return Found(inside[left], classes[left], confidence[left])
