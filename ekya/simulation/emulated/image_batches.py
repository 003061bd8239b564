"""Images to which many models answer, the fastest way for each kind of model."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ekya.models.edge.detection.read_objects import Found
from ekya.models.edge.model import EdgeModel
from ekya.models.edge.multi_model import ClassAnswer
from ekya.models.edge.shared import SharedTrunk
from ekya.pipeline.inference import FleetAnswer, ServingDetector


class ImageBatch(Protocol):
    """Interface of N images to which many models answer."""

    def answer(self, model: EdgeModel) -> FleetAnswer:
        """Returns a model's answer to all images, in the fleet's classes."""

    def take(self, rows: NDArray[np.int64]) -> "ImageBatch":
        """Returns these images, in this order."""

    def of_heads(self, model: EdgeModel) -> "ImageBatch | None":
        """Returns what models that differ from this one in their heads only answer much faster, if any."""


def image_batch(
    base: EdgeModel,
    blocks_left: int,
    images: Mapping[int, NDArray[np.uint8]],
    resolution: int,
    classes: tuple[str, ...],
) -> ImageBatch:
    """Returns images at a resolution, to ask models that were trained from a base model.

    Args:
        base: the base model.
        blocks_left: number of blocks, counted from the end, that may be trained.
        images: (N, S, S, 3) uint8 RGB by their side S; if the resolution is not among them, they are resized
            from the largest.
        resolution: at which they are analysed.
        classes: the fleet's.
    """
    stored = images.get(resolution, images[max(images)])
    if base.detector is None:
        return CropBatch(SharedTrunk.of(base, blocks_left, stored, resolution), classes)
    return FrameBatch(stored, resolution, classes)


@dataclass(frozen=True, slots=True, eq=False)
class CropBatch:
    """``ImageBatch`` of classifiers: the blocks that all of them share have run already."""

    trunk: SharedTrunk
    classes: tuple[str, ...]

    def answer(self, model: EdgeModel) -> ClassAnswer:
        """Returns the class of each crop; confidences are not computed and given as 1."""
        in_fleet = np.array([self.classes.index(name) for name in model.classes], np.int64)
        classes = in_fleet[self.trunk.predict(model)]
        return classes, np.ones(len(classes), np.float32)

    def take(self, rows: NDArray[np.int64]) -> "CropBatch":
        """Returns these crops."""
        return replace(self, trunk=self.trunk.take(rows))

    def of_heads(self, model: EdgeModel) -> "CropBatch":
        """Returns the crops after all blocks of this model."""
        return replace(self, trunk=self.trunk.without_blocks(model))


@dataclass(frozen=True, slots=True, eq=False)
class FrameBatch:
    """``ImageBatch`` of detectors. Maps inside one are larger than its frame, so each runs as a whole."""

    images: NDArray[np.uint8]
    resolution: int
    classes: tuple[str, ...]

    def answer(self, model: EdgeModel) -> list[Found]:
        """Returns the objects in each frame."""
        return ServingDetector(model, self.classes).predict(self.images, self.resolution)

    def take(self, rows: NDArray[np.int64]) -> "FrameBatch":
        """Returns these frames."""
        return replace(self, images=self.images[rows])

    def of_heads(self, model: EdgeModel) -> None:
        """Returns None: a detector's heads take as long as most of its blocks."""
