"""Where the objects are, without saying what they are: that is the edge model's work."""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ekya.core.boxes import iou_matrix
from ekya.errors import UserError
from ekya.labeling.boxes import covered_part, nms
from ekya.labeling.detections import Detector, Proposals
from ekya.streams.frame import Frame
from ekya.streams.motion import MotionRegions

MAX_BOXES = 24
"""More objects a frame than this are not looked at: a bound on the work of one frame."""

SAME_BOX_IOU = 0.6
_COVERED_IOU = 0.3
_COVERED_PART = 0.3


class Proposer(Protocol):
    """Finds objects to classify. One per stream, fed its frames in order."""

    def propose(self, frame: Frame) -> Proposals:
        """The objects of a frame."""

    def operations(self, shape: tuple[int, ...]) -> int:
        """Multiplications and additions for one picture of this (H, W, ...) shape."""


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


@dataclass(eq=False)
class DetectorAndMotion:
    """A detector's boxes, whatever it thinks they are, and what moves where it sees nothing.

    Attributes:
        detector: with a low least score (``PROPOSAL_SCORE``): a wrong box costs one crop that is
            called background, a missing one an object.
        motion: this stream's background.
        max_moving: at most so many moving regions a frame. On real streets most of them are leaves and
            shadows, and each costs as much to classify as an object does.
    """

    detector: Detector
    motion: MotionRegions = field(default_factory=MotionRegions)
    max_moving: int = 4

    def propose(self, frame: Frame) -> Proposals:
        """At most ``MAX_BOXES`` boxes: the detector's, surest first, then moving regions, largest first."""
        found = self.detector.detect(frame.image)
        kept = nms(found.boxes, found.scores, None, SAME_BOX_IOU)
        boxes = found.boxes[kept]
        moving = self._uncovered(self.motion.update(frame.image), boxes)
        return Proposals(np.concatenate([boxes, moving[: self.max_moving]])[:MAX_BOXES], found)

    def operations(self, shape: tuple[int, ...]) -> int:
        """The detector's; background subtraction is small beside it and is not counted."""
        return self.detector.operations_per_frame(shape)

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
