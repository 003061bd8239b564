"""Reads the objects of images from the decoded outputs of a detector: best class, threshold, suppression."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekya.core.matching import SURE
from ekya.models.edge.detection.detector import Decoded
from ekya.models.golden.boxes import nms

LEAST_CONFIDENCE = 0.2
"""Objects below are dropped: they are far from counting, and average precision hardly changes by them."""

MOST_OBJECTS = 100
_MAX_IOU = 0.45
_CANDIDATES = 300


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


def fleet_outputs(outputs: tuple[str, ...], fleet: tuple[str, ...]) -> NDArray[np.int64]:
    """Returns (C,) the fleet's class of each of a model's outputs, -1 for one that the fleet lacks."""
    return np.array([fleet.index(name) if name in fleet else -1 for name in outputs], np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Boxes of N images before suppression, each with the best of its classes.

    Attributes:
        boxes: (N, A, 4) float32, x0 y0 x1 y1 as fractions of the image.
        scores: (N, A) float32, of the best class.
        outputs: (N, A) int64, the best class, an output of the model.
    """

    boxes: NDArray[np.float32]
    scores: NDArray[np.float32]
    outputs: NDArray[np.int64]

    @staticmethod
    def of(decoded: Decoded) -> "Candidates":
        """Returns the candidates of decoded outputs."""
        scores, best = decoded.scores.max(dim=2)
        return Candidates(
            decoded.boxes.float().cpu().numpy(), scores.float().cpu().numpy(), best.cpu().numpy()
        )


def found_in(candidates: Candidates, in_fleet: NDArray[np.int64]) -> list[Found]:
    """Returns the objects of each image, at most ``MOST_OBJECTS``, after class-wise suppression.

    A box is of its best class among all that the model knows, and is dropped if the fleet does not have it.

    Args:
        candidates: of N images.
        in_fleet: as ``fleet_outputs`` returned it for the model.
    """
    return [
        _found(*of, in_fleet)
        for of in zip(candidates.boxes, candidates.scores, candidates.outputs, strict=True)
    ]


def _found(
    boxes: NDArray[np.float32],
    scores: NDArray[np.float32],
    outputs: NDArray[np.int64],
    in_fleet: NDArray[np.int64],
) -> Found:
    classes = in_fleet[outputs]
    usable = (scores >= LEAST_CONFIDENCE) & (classes >= 0) & np.isfinite(boxes).all(axis=1)
    rows = np.flatnonzero(usable)
    rows = rows[np.argsort(-scores[rows], kind="stable")][:_CANDIDATES]
    inside, classes, scores = np.clip(boxes[rows], 0.0, 1.0), classes[rows], np.clip(scores[rows], 0.0, 1.0)
    kept = nms(inside, scores, classes, _MAX_IOU)[:MOST_OBJECTS]
    return Found(inside[kept], classes[kept], scores[kept])
