"""Finds the boxes of objects, which the edge model then classifies."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Protocol

import numpy as np

from ekya.core.errors import UserError
from ekya.models.golden.detections import ON_CPU, ObjectDetector, Proposals, RunsOn, nms
from ekya.streams.ingest.frame import Frame

MAX_BOXES = 24
"""Maximum number of objects in a frame: an upper bound on the work of one frame."""

SAME_BOX_IOU = 0.6
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


@dataclass(frozen=True, slots=True, eq=False)
class DetectedBoxes:
    """``Proposer`` of a detector's boxes, of any class.

    Attributes:
        detector: with a low minimum score (``PROPOSAL_SCORE``): a wrong box costs one crop that is
            classified as background, a missing one an object.
        gpu_scope: context of the detector, where it runs on a GPU.
    """

    detector: ObjectDetector
    gpu_scope: Callable[[], AbstractContextManager[None]] = nullcontext
    free: ClassVar[bool] = False

    @property
    def runs_on(self) -> RunsOn:
        return self.detector.runs_on

    def propose_boxes(self, frame: Frame) -> Proposals:
        """Returns ``MAX_BOXES`` at most, best first."""
        picture = frame.image
        with self.gpu_scope() if self.runs_on != ON_CPU else nullcontext():
            found = self.detector.detect_objects(picture)
        boxes = found.boxes[nms(found.boxes, found.scores, None, SAME_BOX_IOU)]
        operations = partial(self.detector.operations_per_frame, picture.shape)
        return Proposals(boxes[frame.find_counting(boxes)][:MAX_BOXES], found, operations)

    def operations(self, shape: tuple[int, ...]) -> int:
        """Returns the operations of one detection."""
        return self.detector.operations_per_frame(shape)
