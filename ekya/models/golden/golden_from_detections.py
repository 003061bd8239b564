"""Golden models from detections, of a detector or in a file: they confirm boxes or call them background."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ekya.core.errors import UserError
from ekya.core.objects import BACKGROUND, iou_matrix
from ekya.core.units import StreamId
from ekya.models.golden.class_map import class_of_each
from ekya.models.golden.detections import (
    ON_CPU,
    Detections,
    FramePlace,
    GoldenObjects,
    ObjectDetector,
    Proposals,
    Question,
    RunsOn,
    nms,
    no_detections,
)
from ekya.models.golden.label_file import LabelFile
from ekya.models.proposer import MAX_BOXES, SAME_BOX_IOU
from ekya.streams.ingest.frame import Frame

UNSURE = -1
"""Label of a box with an unsure detection only: it is not used for training."""

_SAME_OBJECT_IOU = 0.5
_DUPLICATE_IOU = 0.7
_NO_BOXES = np.zeros((0, 4), np.float32)


class DetectionSource(Protocol):
    """Source of the detections in an image: a detector, or a label file."""

    @property
    def runs_on(self) -> RunsOn:
        """Where it computes."""

    def detections(self, items: Sequence[Question]) -> Sequence[Detections | None]:
        """Returns the detections in each item's image; None if the image was never analysed."""

    def operations(self, items: Sequence[Question]) -> int:
        """Returns the multiplications and additions for the detections of all items."""


@dataclass(frozen=True, slots=True, eq=False)
class DetectionModel:
    """``GoldenModel`` from detections.

    Attributes:
        classes: the fleet's.
        background: index of ``background``; None if no box is that.
        finds: whether objects are found in images; otherwise boxes are given and only classified.
        source: of the detections, with unsure ones too, to distinguish their boxes from background.
        class_of: the fleet's class of each of the source's classes, as ``class_of_each`` returns it.
        sure_score: minimum score of a sure detection.
    """

    classes: tuple[str, ...]
    background: int | None
    finds: bool
    source: DetectionSource
    class_of: NDArray[np.int64]
    sure_score: float

    def label_boxes(self, items: Sequence[Question]) -> list[NDArray[np.int64]]:
        """Returns the class of the sure detection that overlaps each box most, at IoU 0.5 or more.

        Other boxes are ``UNSURE`` if an unsure detection of one of the fleet's classes overlaps them as much,
        or the image was never analysed, else background.
        """
        asked = [item for item in items if len(item.boxes)]
        found = iter(self.source.detections(asked))
        return [self._label(item, next(found) if len(item.boxes) else None) for item in items]

    def operations(self, items: Sequence[Question]) -> int:
        """Returns the multiplications and additions for all images without detections.

        If there is a background, images without boxes are not looked at.
        """
        return self.source.operations([item for item in items if self.background is None or len(item.boxes)])

    def find_objects(
        self,
        image: NDArray[np.uint8],
        place: FramePlace | None = None,
        size: tuple[int, int] | None = None,
    ) -> GoldenObjects | None:
        """Returns the sure and the doubtful detections of the fleet's classes, without duplicates.

        None if boxes are given and only classified, or the image was never analysed.
        """
        return self.find_each([Question(_NO_BOXES, image, None, place, size)])[0]

    def find_each(self, items: Sequence[Question]) -> list[GoldenObjects | None]:
        """Returns what ``find_objects`` does of each image; of one with detections, theirs."""
        if not self.finds:
            return [None for _ in items]
        every = self.source.detections(items)
        return [None if detections is None else self._found(detections) for detections in every]

    @property
    def runs_on(self) -> RunsOn:
        """Where its source computes."""
        return self.source.runs_on

    def _found(self, detections: Detections) -> GoldenObjects:
        found, classes, sure = self._of_fleet(detections)
        # One vehicle may be found as a car and as a truck.
        kept = nms(found.boxes, found.scores, None, _DUPLICATE_IOU)
        found, classes, sure = found.select_rows(kept), classes[kept], sure[kept]
        return GoldenObjects(found.boxes[sure], classes[sure], found.boxes[~sure])

    def _label(self, item: Question, detections: Detections | None) -> NDArray[np.int64]:
        labels = np.full(len(item.boxes), UNSURE, dtype=np.int64)
        if detections is None:
            return labels
        found, classes, sure = self._of_fleet(detections)
        overlap = iou_matrix(item.boxes, found.boxes)
        if self.background is not None:
            labels[np.all(overlap < _SAME_OBJECT_IOU, axis=1)] = self.background
        if np.any(sure):
            best = overlap[:, sure].argmax(axis=1)
            there = overlap[:, sure].max(axis=1) >= _SAME_OBJECT_IOU
            labels[there] = classes[sure][best[there]]
        return labels

    def _of_fleet(self, found: Detections) -> tuple[Detections, NDArray[np.int64], NDArray[np.bool_]]:
        """Returns the detections of the fleet's classes, those classes, and which are sure."""
        found = found.select_rows(self.class_of[found.classes] >= 0)
        return found, self.class_of[found.classes], found.scores >= self.sure_score


@dataclass(frozen=True, slots=True, eq=False)
class _DetectorSource:
    """Detections of a detector, or those that it made when it proposed the boxes."""

    detector: ObjectDetector

    @property
    def runs_on(self) -> RunsOn:
        return self.detector.runs_on

    def detections(self, items: Sequence[Question]) -> list[Detections]:
        asked = [item for item in items if item.found is None]
        found = iter(self.detector.detect_each([item.picture for item in asked]))
        return [item.found or _in_frame(next(found), item) for item in items]

    def operations(self, items: Sequence[Question]) -> int:
        asked = [item.picture for item in items if item.found is None]
        return sum(self.detector.operations_per_frame(image.shape) for image in asked)


def _in_frame(found: Detections, item: Question) -> Detections:
    """Returns what was found in an item's picture in pixels of its frame."""
    if item.size is None:
        return found
    height, width = item.picture.shape[:2]
    scale = np.tile(np.array(item.size, np.float32) / np.array([width, height], np.float32), 2)
    return replace(found, boxes=(found.boxes * scale).astype(np.float32))


def detector_model(
    classes: tuple[str, ...],
    detector: ObjectDetector,
    sure_score: float,
    class_map: Path | None = None,
    names_boxes: bool = True,
) -> DetectionModel:
    """Returns the golden model of a detector.

    Args:
        classes: the fleet's.
        detector: any; with a lower minimum score, unsure boxes can be distinguished from background.
        sure_score: minimum score of a sure detection.
        class_map: file that maps the detector's classes to the fleet's, if their names differ.
        names_boxes: it labels proposed boxes, and ``background`` is one of the fleet's classes.

    Raises:
        UserError: it is none of them, or the detector and the map do not know one of them.
    """
    if names_boxes and BACKGROUND not in classes:
        raise UserError(f"key 'classes': with a golden detector '{BACKGROUND}' must be one of them; add it.")
    background = classes.index(BACKGROUND) if names_boxes else None
    class_of = class_of_each(classes, detector.names, class_map, "the golden detector")
    return DetectionModel(classes, background, True, _DetectorSource(detector), class_of, sure_score)


@dataclass(frozen=True, slots=True, eq=False)
class _FileSource:
    """Detections in a label file (``ekya golden label``)."""

    labels: LabelFile
    runs_on: RunsOn = ON_CPU

    def detections(self, items: Sequence[Question]) -> list[Detections | None]:
        return [self._of(item) for item in items]

    def _of(self, item: Question) -> Detections | None:
        if item.place is None:
            raise ValueError("labels that were made before are found by stream and frame only")
        return self.labels.labels_at_frame(item.place)

    def operations(self, items: Sequence[Question]) -> int:
        return 0


def label_file_model(
    classes: tuple[str, ...],
    labels: LabelFile,
    sure_score: float,
    class_map: Path | None,
    names_boxes: bool = True,
) -> DetectionModel:
    """Returns the golden model of a label file.

    Args:
        classes: the fleet's; if one is ``background``, boxes that are not in the file are labelled as
            that.
        labels: of all the fleet's streams.
        sure_score: minimum confidence of a sure label. Labels of given boxes are always sure.
        class_map: file that maps the label file's classes to the fleet's, if names differ.
        names_boxes: it labels boxes that are given or proposed; otherwise its objects are those of frames.

    Raises:
        UserError: the file and the map do not know one of the classes.
    """
    background = classes.index(BACKGROUND) if BACKGROUND in classes else None
    finds = background is not None or not names_boxes
    class_of = class_of_each(classes, labels.head.names, class_map, labels.path.name)
    return DetectionModel(
        classes, background, finds, _FileSource(labels), class_of, sure_score if finds else 0.0
    )


class LabelFileProposer:
    """``Proposer`` that reads the boxes of a stream from a label file."""

    free, runs_on = False, ON_CPU

    def __init__(self, labels: LabelFile, stream: StreamId) -> None:
        self._labels = labels
        self._stream = stream

    def propose_boxes(self, frame: Frame) -> Proposals:
        """Returns the most confident boxes of the frame, of any class and without duplicates."""
        found = self._labels.labels_at_frame(FramePlace(self._stream, frame.index)) or no_detections()
        boxes = found.boxes[nms(found.boxes, found.scores, None, SAME_BOX_IOU)]
        return Proposals(boxes[frame.find_counting(boxes)][:MAX_BOXES], found)

    def operations(self, shape: tuple[int, ...]) -> int:
        """Returns 0: everything was computed before."""
        return 0
