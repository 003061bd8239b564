"""Finds the boxes of objects, which the edge model then classifies."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from ekya.core.errors import UserError
from ekya.core.objects import iou_matrix
from ekya.models.golden.detections import ON_CPU, ObjectDetector, Proposals, RunsOn, covered_part, nms
from ekya.streams.ingest.frame import Frame
from ekya.streams.ingest.motion import BoxFlow, MotionRegions

MAX_BOXES = 24
"""Maximum number of objects in a frame: an upper bound on the work of one frame."""

MAX_EVERY = 30
"""Upper bound of ``every``: tracked for more than a second of video, boxes rarely match their objects."""

SAME_BOX_IOU = 0.6
_TYPICAL_BOXES = 6
_COVERED_IOU = 0.3
_COVERED_PART = 0.3
_NO_BOXES = np.zeros((0, 4), np.float32)


class Proposer(Protocol):
    """Interface: finds the objects to classify of one stream, whose frames are given in order."""

    @property
    def free(self) -> bool:
        """True if proposing computes nothing, so that it may be done for every frame."""

    @property
    def runs_on(self) -> RunsOn:
        """Where its network runs, if it has one; the rest is the CPU's work."""

    def propose_boxes(self, frame: Frame) -> Proposals:
        """Returns the boxes of the objects in a frame."""

    def operations(self, shape: tuple[int, ...]) -> int:
        """Returns the average multiplications and additions for one image of this (H, W, ...) shape."""


class NoProposals:
    """``Proposer`` for edge models that find the objects themselves."""

    free, runs_on = True, ON_CPU

    def propose_boxes(self, frame: Frame) -> Proposals:
        """Returns no boxes."""
        return Proposals(_NO_BOXES)

    def operations(self, shape: tuple[int, ...]) -> int:
        """Returns 0: nothing is computed."""
        return 0


class GivenBoxes:
    """``Proposer`` of the boxes that come with a frame, as in the synthetic city."""

    free, runs_on = True, ON_CPU

    def propose_boxes(self, frame: Frame) -> Proposals:
        """Returns the frame's own boxes.

        Raises:
            UserError: the frame has none, so this source needs a detector.
        """
        if frame.boxes is None:
            raise UserError("this source gives no boxes; name a golden detector under the key 'golden'.")
        return Proposals(frame.boxes)

    def operations(self, shape: tuple[int, ...]) -> int:
        """Returns 0: nothing is computed."""
        return 0


class Find(StrEnum):
    """Ways to find a camera's objects."""

    DETECTOR_AND_MOTION = "detector+motion"
    """For a fixed camera."""

    DETECTOR = "detector"
    """For a moving camera: all of its image moves."""


class ObjectsSpec(BaseModel):
    """Settings of how a camera's objects are found.

    Attributes:
        find: the way to find them.
        every: the detector runs on every ``every``-th analysed frame; in the others its boxes are tracked.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    find: Find = Find.DETECTOR_AND_MOTION
    every: int = Field(default=1, ge=1, le=MAX_EVERY)


@dataclass(eq=False)
class DetectorAndMotion:
    """Proposes a detector's boxes, of any class, and moving regions where it finds nothing.

    Attributes:
        detector: with a low minimum score (``PROPOSAL_SCORE``): a wrong box costs one crop that is
            classified as background, a missing one an object.
        motion: background model of this stream; None for a moving camera.
        max_moving: maximum number of moving regions per frame. On real streets most of them are leaves and
            shadows, and each costs as much to classify as an object does.
        every: the detector runs on every ``every``-th frame; in the others its boxes are tracked.
        gpu_scope: context of the detector, where it runs on a GPU.
    """

    detector: ObjectDetector
    motion: MotionRegions | None = field(default_factory=MotionRegions)
    max_moving: int = 4
    every: int = 1
    gpu_scope: Callable[[], AbstractContextManager[None]] = nullcontext
    free: ClassVar[bool] = False
    _flow: BoxFlow = field(default_factory=BoxFlow, init=False)
    _since_detected: int = field(default=0, init=False)

    @property
    def runs_on(self) -> RunsOn:
        return self.detector.runs_on

    def propose_boxes(self, frame: Frame) -> Proposals:
        """Returns ``MAX_BOXES`` at most: the detector's, best first, then moving regions, largest first."""
        picture = frame.image
        self._since_detected += 1
        if self._since_detected >= self.every or not self._flow.has_size_of(picture):
            proposals = self._detected(picture)
        else:
            boxes = self._flow.follow_boxes(picture)
            proposals = Proposals(
                boxes, None, partial(self._flow.count_operations, picture.shape, len(boxes))
            )
        boxes = proposals.boxes
        moving = boxes[:0]
        if self.motion is not None:
            # Asked for every frame, since the background model learns from each.
            moving = self._uncovered(self.motion.find_regions(picture), boxes)
            moving = moving[frame.find_counting(moving)][: self.max_moving]
        boxes = np.concatenate([boxes[frame.find_counting(boxes)], moving])
        return replace(proposals, boxes=boxes[:MAX_BOXES])

    def operations(self, shape: tuple[int, ...]) -> int:
        """Returns the average operations of detection and tracking over frames of a street.

        Background subtraction is small beside them and is not counted.
        """
        detecting = self.detector.operations_per_frame(shape)
        if self.every == 1:
            return detecting
        following = (self.every - 1) * self._flow.count_operations(shape, _TYPICAL_BOXES)
        return (detecting + following) // self.every

    def _detected(self, picture: NDArray[np.uint8]) -> Proposals:
        with self.gpu_scope() if self.runs_on != ON_CPU else nullcontext():
            found = self.detector.detect_objects(picture)
        boxes = found.boxes[nms(found.boxes, found.scores, None, SAME_BOX_IOU)]
        self._since_detected = 0
        if self.every > 1:
            self._flow.start_boxes(picture, boxes)
        return Proposals(boxes, found, partial(self.detector.operations_per_frame, picture.shape))

    def _uncovered(self, moving: NDArray[np.float32], boxes: NDArray[np.float32]) -> NDArray[np.float32]:
        """Returns the moving regions that neither match a box nor lie in one nor contain one."""
        size = np.prod(moving[:, 2:] - moving[:, :2], axis=1)
        moving = moving[np.argsort(-size, kind="stable")]
        if not len(boxes) or not len(moving):
            return moving
        match = iou_matrix(moving, boxes).max(axis=1) >= _COVERED_IOU
        inside = covered_part(moving, boxes).max(axis=1) >= _COVERED_PART
        holds = covered_part(boxes, moving).max(axis=0) >= 1.0 - _COVERED_PART
        uncovered: NDArray[np.float32] = moving[~(match | inside | holds)]
        return uncovered
