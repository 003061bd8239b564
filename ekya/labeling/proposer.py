"""Where the objects are, without saying what they are: that is the edge model's work."""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from ekya.core.boxes import iou_matrix
from ekya.errors import UserError
from ekya.labeling.boxes import covered_part, nms
from ekya.labeling.detections import Detector, Proposals
from ekya.streams.flow import BoxFlow
from ekya.streams.frame import Frame
from ekya.streams.motion import MotionRegions

MAX_BOXES = 24
"""More objects a frame than this are not looked at: a bound on the work of one frame."""

MAX_EVERY = 30
"""Followed for longer than a second of video, hardly a box is where its object is."""

SAME_BOX_IOU = 0.6
_TYPICAL_BOXES = 6
_COVERED_IOU = 0.3
_COVERED_PART = 0.3


class Proposer(Protocol):
    """Finds objects to classify. One per stream, fed its frames in order."""

    def propose(self, frame: Frame) -> Proposals:
        """The objects of a frame."""

    def operations(self, shape: tuple[int, ...]) -> int:
        """Multiplications and additions for one picture of this (H, W, ...) shape, on average."""


class GivenBoxes:
    """The boxes that come with the frame, as the synthetic city's do."""

    def propose(self, frame: Frame) -> Proposals:
        """The frame's own boxes.

        Raises:
            UserError: it has none, so this source needs a detector.
        """
        if frame.boxes is None:
            raise UserError("this source gives no boxes; name a golden detector under the key 'golden'.")
        return Proposals(frame.boxes)

    def operations(self, shape: tuple[int, ...]) -> int:
        """None: nothing is computed."""
        return 0


class Find(StrEnum):
    """What finds a camera's objects."""

    DETECTOR_AND_MOTION = "detector+motion"
    """For a camera that stands still."""

    DETECTOR = "detector"
    """For one that moves: all of its picture does."""


class ObjectsSpec(BaseModel):
    """How a camera's objects are found.

    Attributes:
        find: by what.
        every: the detector looks at every so many-th of the frames that are looked at; between them its
            boxes are followed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    find: Find = Find.DETECTOR_AND_MOTION
    every: int = Field(default=1, ge=1, le=MAX_EVERY)


@dataclass(eq=False)
class DetectorAndMotion:
    """A detector's boxes, whatever it thinks they are, and what moves where it sees nothing.

    Attributes:
        detector: with a low least score (``PROPOSAL_SCORE``): a wrong box costs one crop that is
            called background, a missing one an object.
        motion: this stream's background; None for a camera that moves.
        max_moving: at most so many moving regions a frame. On real streets most of them are leaves and
            shadows, and each costs as much to classify as an object does.
        every: the detector looks at every so many-th frame; into the others its boxes are followed.
    """

    detector: Detector
    motion: MotionRegions | None = field(default_factory=MotionRegions)
    max_moving: int = 4
    every: int = 1
    _flow: BoxFlow = field(default_factory=BoxFlow, init=False)
    _since_detected: int = field(default=0, init=False)

    def propose(self, frame: Frame) -> Proposals:
        """At most ``MAX_BOXES`` boxes: the detector's, surest first, then moving regions, largest first."""
        picture = frame.image
        self._since_detected += 1
        if self._since_detected >= self.every or not self._flow.fits(picture):
            proposals = self._detected(picture)
        else:
            boxes = self._flow.follow(picture)
            proposals = Proposals(boxes, None, partial(self._flow.operations, picture.shape, len(boxes)))
        boxes = proposals.boxes
        if self.motion is not None:
            moving = self._uncovered(self.motion.update(picture), boxes)
            boxes = np.concatenate([boxes, moving[: self.max_moving]])
        return replace(proposals, boxes=boxes[:MAX_BOXES])

    def operations(self, shape: tuple[int, ...]) -> int:
        """The detector's and the following's, on average over frames of a street.

        Background subtraction is small beside them and is not counted.
        """
        detecting = self.detector.operations_per_frame(shape)
        if self.every == 1:
            return detecting
        following = (self.every - 1) * self._flow.operations(shape, _TYPICAL_BOXES)
        return (detecting + following) // self.every

    def _detected(self, picture: NDArray[np.uint8]) -> Proposals:
        found = self.detector.detect(picture)
        boxes = found.boxes[nms(found.boxes, found.scores, None, SAME_BOX_IOU)]
        self._since_detected = 0
        if self.every > 1:
            self._flow.start(picture, boxes)
        return Proposals(boxes, found, partial(self.detector.operations_per_frame, picture.shape))

    def _uncovered(self, moving: NDArray[np.float32], boxes: NDArray[np.float32]) -> NDArray[np.float32]:
        """Moving regions that neither match a box nor lie in one nor hold one."""
        size = np.prod(moving[:, 2:] - moving[:, :2], axis=1)
        moving = moving[np.argsort(-size, kind="stable")]
        if not len(boxes) or not len(moving):
            return moving
        match = iou_matrix(moving, boxes).max(axis=1) >= _COVERED_IOU
        inside = covered_part(moving, boxes).max(axis=1) >= _COVERED_PART
        holds = covered_part(boxes, moving).max(axis=0) >= 1.0 - _COVERED_PART
        uncovered: NDArray[np.float32] = moving[~(match | inside | holds)]
        return uncovered
