"""Golden model and proposer that read labels from a file, at no cost."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ekya.core.objects import BACKGROUND
from ekya.core.units import StreamId
from ekya.models.golden.class_map import class_of_each
from ekya.models.golden.detections import Detections, FramePlace, Proposals, Question, no_detections
from ekya.models.golden.golden_from_detector import DetectionModel
from ekya.models.golden.label_file import LabelFile
from ekya.models.golden.nms import nms
from ekya.models.proposer import MAX_BOXES, SAME_BOX_IOU
from ekya.streams.ingest.frame import Frame


@dataclass(frozen=True, slots=True, eq=False)
class _FileSource:
    """Detections in a label file (``ekya golden label``)."""

    labels: LabelFile

    def detections(self, item: Question) -> Detections | None:
        if item.place is None:
            raise ValueError("labels that were made before are found by stream and frame only")
        return self.labels.at(item.place)

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

    free = False

    def __init__(self, labels: LabelFile, stream: StreamId) -> None:
        self._labels = labels
        self._stream = stream

    def propose(self, frame: Frame) -> Proposals:
        """Returns the most confident boxes of the frame, of any class and without duplicates."""
        found = self._labels.at(FramePlace(self._stream, frame.index)) or no_detections()
        kept = nms(found.boxes, found.scores, None, SAME_BOX_IOU)
        return Proposals(found.boxes[kept][:MAX_BOXES], found)

    def operations(self, shape: tuple[int, ...]) -> int:
        """Returns 0: everything was computed before."""
        return 0
