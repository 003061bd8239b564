"""Answers to the stored frames of a window: of a model, or of the golden detector."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ekya.core.objects import DOUBTFUL
from ekya.core.records import FrameReference, offsets_of
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

    def only(self, wanted: NDArray[np.bool_]) -> "Answers":
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
            self._flow.start(frame.image, boxes)
            self._found = classes
        elif self._flow.fits(frame.image):
            boxes = self._flow.follow(frame.image)
            classes = self._found[self._flow.rows]
        self._boxes.append(boxes)
        self._classes.append(classes)

    def answers(self) -> Answers:
        """Returns the boxes in each frame; none before the first k-th one."""
        return Answers(
            offsets_of(np.array([len(classes) for classes in self._classes], np.int64)),
            np.concatenate([np.zeros((0, 4), np.float32), *self._boxes]),
            np.concatenate([np.zeros(0, np.int64), *self._classes]),
            np.ones(sum(map(len, self._classes)), np.float32),
        )
