"""Golden model that reads labels from a file, at no cost."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ekya.core.objects import BACKGROUND
from ekya.core.units import StreamId
from ekya.models.golden.boxes import nms
from ekya.models.golden.class_map import class_of_each
from ekya.models.golden.confirming import UNSURE, confirmed
from ekya.models.golden.detections import Detections, FramePlace, Proposals, Question
from ekya.models.golden.label_file import LabelFile
from ekya.models.golden.proposer import MAX_BOXES, SAME_BOX_IOU
from ekya.streams.ingest.frame import Frame


class GoldenFile:
    """``GoldenModel`` from a label file (``ekya golden label``)."""

    def __init__(
        self, classes: tuple[str, ...], labels: LabelFile, sure_score: float, class_map: Path | None
    ) -> None:
        """Map the file's classes to the fleet's.

        Args:
            classes: the fleet's; if the last is ``background``, boxes that are not in the file are labelled
                as that.
            labels: of all the fleet's streams.
            sure_score: minimum confidence of a sure label. Labels of given boxes are always sure.
            class_map: file that maps the label file's classes to the fleet's, if names differ.

        Raises:
            UserError: the file and the map do not know one of the classes.
        """
        self._classes = classes
        self._finds = classes[-1] == BACKGROUND
        self._labels = labels
        self._sure_score = sure_score if self._finds else 0.0
        named = classes[:-1] if self._finds else classes
        self._class_of = class_of_each(named, labels.head.names, class_map, labels.path.name)

    @property
    def classes(self) -> tuple[str, ...]:
        """The fleet's classes."""
        return self._classes

    @property
    def background(self) -> int | None:
        """Index of ``background``, if the fleet has it."""
        return len(self._classes) - 1 if self._finds else None

    def label(self, items: Sequence[Question]) -> list[NDArray[np.int64]]:
        """Returns, as ``confirmed``, the class of each box; -1 for boxes of frames without labels."""
        return [self._label(item) for item in items]

    def operations(self, items: Sequence[Question]) -> int:
        """Returns 0: everything was computed before."""
        return 0

    def detect(
        self, image: NDArray[np.uint8], place: FramePlace | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]] | None:
        """Returns the sure labels of the fleet's classes in a frame; None if boxes are given."""
        if not self._finds:
            return None
        found, classes = self._at(place) or (_NOTHING, _NOTHING.classes)
        sure = found.scores >= self._sure_score
        return found.boxes[sure], classes[sure]

    def _label(self, item: Question) -> NDArray[np.int64]:
        known = self._at(item.place)
        if known is None:
            return np.full(len(item.boxes), UNSURE, np.int64)
        otherwise = self.background if self.background is not None else UNSURE
        found, classes = known
        return confirmed(item.boxes, found, classes, found.scores >= self._sure_score, otherwise)

    def _at(self, place: FramePlace | None) -> tuple[Detections, NDArray[np.int64]] | None:
        """Returns the labels of the fleet's classes in a frame, and those classes."""
        if place is None:
            raise ValueError("labels that were made before are found by stream and frame only")
        found = self._labels.at(place)
        if found is None:
            return None
        ours = found.take(self._class_of[found.classes] >= 0)
        return ours, self._class_of[ours.classes]


_NOTHING = Detections(np.zeros((0, 4), np.float32), np.zeros(0, np.int64), np.zeros(0, np.float32))


class BoxesBefore:
    """``Proposer`` that reads the boxes of a stream from a label file."""

    def __init__(self, labels: LabelFile, stream: StreamId) -> None:
        self._labels = labels
        self._stream = stream

    def propose(self, frame: Frame) -> Proposals:
        """Returns the most confident boxes of the frame, of any class and without duplicates."""
        found = self._labels.at(FramePlace(self._stream, frame.index)) or _NOTHING
        kept = nms(found.boxes, found.scores, None, SAME_BOX_IOU)
        return Proposals(found.boxes[kept][:MAX_BOXES], found)

    def operations(self, shape: tuple[int, ...]) -> int:
        """Returns 0: everything was computed before."""
        return 0
