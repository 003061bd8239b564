"""Answers to the stored frames of a window, of many models or of the golden detector."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ekya.core.objects import DOUBTFUL
from ekya.core.records import FrameReference, offsets_of
from ekya.models.edge.detection.read_objects import Found
from ekya.models.edge.model import EdgeModel
from ekya.models.edge.multi_model import ClassAnswer, SharedTrunk
from ekya.pipeline.inference import FleetAnswer, ServingDetector
from ekya.streams.ingest.frame import Frame
from ekya.streams.ingest.motion import BoxFlow


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """A model's answers to F frames if it analyses all of them, with N boxes in total.

    Attributes:
        offsets: (F + 1,) int64, start of each frame's boxes.
        boxes: (N, 4) float32, in pixels.
        classes: (N,) int64, index into the fleet's.
        confidence: (N,) float32.
    """

    offsets: NDArray[np.int64]
    boxes: NDArray[np.float32]
    classes: NDArray[np.int64]
    confidence: NDArray[np.float32]

    def select_frames(self, wanted: NDArray[np.bool_]) -> "Answers":
        """Returns the answers to the frames that are True in (F,)."""
        counts = np.diff(self.offsets)
        rows = np.repeat(wanted, counts)
        return Answers(
            offsets_of(counts[wanted]), self.boxes[rows], self.classes[rows], self.confidence[rows]
        )


@dataclass(slots=True, eq=False)
class FollowedGolden:
    """The golden detector on every k-th frame of a window, with its boxes followed into the others.

    Attributes:
        every: k.
    """

    every: int
    _flow: BoxFlow = field(default_factory=BoxFlow, init=False)
    _found: NDArray[np.int16] = field(default_factory=lambda: np.zeros(0, np.int16), init=False)
    _boxes: list[NDArray[np.float32]] = field(default_factory=list, init=False)
    _classes: list[NDArray[np.int16]] = field(default_factory=list, init=False)

    def add(self, frame: Frame, found: FrameReference) -> None:
        """Adds the next frame, with all that the golden detector finds in it."""
        boxes, classes = found.boxes[:0], found.classes[:0]
        if frame.index % self.every == 0:
            objects = found.classes != DOUBTFUL
            boxes, classes = found.boxes[objects], found.classes[objects]
            self._flow.start_boxes(frame.image, boxes)
            self._found = classes
        elif self._flow.has_size_of(frame.image):
            boxes = self._flow.follow_boxes(frame.image)
            counts = frame.find_counting(boxes)
            boxes, classes = boxes[counts], self._found[self._flow.rows][counts]
        self._boxes.append(boxes)
        self._classes.append(classes)

    def collect_answers(self) -> Answers:
        """Returns the boxes in each frame; none before the first k-th one."""
        return Answers(
            offsets_of(np.array([len(classes) for classes in self._classes], np.int64)),
            np.concatenate([np.zeros((0, 4), np.float32), *self._boxes]),
            np.concatenate([np.zeros(0, np.int64), *self._classes]),
            np.ones(sum(map(len, self._classes)), np.float32),
        )


class ImageBatch(Protocol):
    """Interface of N images to which many models answer."""

    def run_model(self, model: EdgeModel) -> FleetAnswer:
        """Returns a model's answer to all images, in the fleet's classes."""

    def select_images(self, rows: NDArray[np.int64]) -> "ImageBatch":
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
        return CropBatch(SharedTrunk.from_crops(base, blocks_left, stored, resolution), classes)
    return FrameBatch(stored, resolution, classes)


@dataclass(frozen=True, slots=True, eq=False)
class CropBatch:
    """``ImageBatch`` of classifiers: the blocks that all of them share have run already."""

    trunk: SharedTrunk
    classes: tuple[str, ...]

    def run_model(self, model: EdgeModel) -> ClassAnswer:
        """Returns the class of each crop; confidences are not computed and given as 1."""
        in_fleet = np.array([self.classes.index(name) for name in model.classes], np.int64)
        classes = in_fleet[self.trunk.predict(model)]
        return classes, np.ones(len(classes), np.float32)

    def select_images(self, rows: NDArray[np.int64]) -> "CropBatch":
        return replace(self, trunk=self.trunk.select_crops(rows))

    def of_heads(self, model: EdgeModel) -> "CropBatch":
        """Returns the crops after all blocks of this model."""
        return replace(self, trunk=self.trunk.without_blocks(model))


@dataclass(frozen=True, slots=True, eq=False)
class FrameBatch:
    """``ImageBatch`` of detectors. Maps inside one are larger than its frame, so each runs as a whole."""

    images: NDArray[np.uint8]
    resolution: int
    classes: tuple[str, ...]

    def run_model(self, model: EdgeModel) -> list[Found]:
        """Returns the objects in each frame."""
        return ServingDetector(model, self.classes).predict(self.images, self.resolution)

    def select_images(self, rows: NDArray[np.int64]) -> "FrameBatch":
        return replace(self, images=self.images[rows])

    def of_heads(self, model: EdgeModel) -> None:
        """Returns None: a detector's heads take as long as most of its blocks."""
