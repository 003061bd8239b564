"""Reference labels for streams without ground truth: the golden detector's result on every frame.

Accuracy on real video is measured against them. They are made after the run and not charged (paper §6.1).
"""

import logging

import numpy as np

from ekya.config.fleet_sections import StreamConfig
from ekya.core.objects import DOUBTFUL
from ekya.core.records import FrameReference
from ekya.core.units import StreamId
from ekya.models.golden.detections import FramePlace
from ekya.models.golden.golden_model import GoldenModel
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_tables import REFERENCE, merge_parts, reference_writer
from ekya.streams.ingest.frame import Frame
from ekya.streams.ingest.motion import IouTracker
from ekya.streams.ingest.process import SourceProcess

_LOG = logging.getLogger(__name__)
_LOG_EVERY = 500
_NO_TRACK = -1


class Referee:
    """Labels the frames of one stream, in order, with the golden detector."""

    def __init__(self, golden: GoldenModel, stream: StreamId) -> None:
        self._golden = golden
        self._stream = stream
        self._tracker = IouTracker()

    def label_frame(self, frame: Frame) -> FrameReference | None:
        """Returns the next frame's objects; None if the golden model has never analysed it."""
        found = self._golden.find_objects(frame.image, FramePlace(self._stream, frame.index))
        if found is None:
            return None
        doubtful = len(found.doubtful)
        classes = np.concatenate([found.classes, np.full(doubtful, DOUBTFUL)]).astype(np.int16)
        tracks = np.concatenate([self._tracker.number_boxes(found.boxes), np.full(doubtful, _NO_TRACK)])
        boxes = np.concatenate([found.boxes, found.doubtful])
        return FrameReference(frame.index, frame.t_us, boxes, classes, tracks)


def write_reference(folder: RunFolder, stream: StreamConfig, golden: GoldenModel, until_us: int) -> None:
    """Writes ``reference/<stream>.parquet`` for the frames that arrived before ``until_us``."""
    if not golden.finds:
        return
    path = folder.reference(stream.id)
    rows = reference_writer(path)
    referee = Referee(golden, stream.id)
    with SourceProcess(stream.first_pass, golden.classes) as source:
        for count, (frame, _) in enumerate(source.frames(), start=1):
            if frame.t_us >= until_us:
                break
            judged = referee.label_frame(frame)
            if judged is not None:
                rows.add_row(judged)
            if count % _LOG_EVERY == 0:
                _LOG.info("%s: %d frames have their reference labels", stream.id, count)
    rows.flush()
    merge_parts(path, REFERENCE)
