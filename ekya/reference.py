"""Reference labels for streams whose source does not know the truth: the golden detector on every frame.

Done after the fact and uncharged, as the paper does (§6.1); it is how accuracy on real video is measured.
"""

import logging

import numpy as np

from ekya.config import StreamConfig
from ekya.core.ids import StreamId
from ekya.core.records import FrameReference
from ekya.labeling.detections import FramePlace
from ekya.labeling.golden import GoldenModel
from ekya.runfolder import RunFolder
from ekya.runtables import ReferenceAppender, merge_reference
from ekya.streams.frame import Frame
from ekya.streams.process import SourceProcess
from ekya.streams.tracking import IouTracker

_LOG = logging.getLogger(__name__)
_TELL_EVERY = 500


class Referee:
    """Says what is in each frame of one stream, frame after frame, as the golden detector sees it."""

    def __init__(self, golden: GoldenModel, stream: StreamId) -> None:
        self._golden = golden
        self._stream = stream
        self._tracker = IouTracker()

    def judge(self, frame: Frame) -> FrameReference | None:
        """The next frame's objects; None from a golden model that finds none by itself."""
        found = self._golden.detect(frame.image, FramePlace(self._stream, frame.index))
        if found is None:
            return None
        boxes, classes = found
        tracks = self._tracker.update(boxes)
        return FrameReference(frame.index, frame.t_us, boxes, classes.astype(np.int16), tracks)


def write_reference(folder: RunFolder, stream: StreamConfig, golden: GoldenModel, until_us: int) -> None:
    """Writes ``reference/<stream>.parquet`` for the frames that arrived before ``until_us``."""
    path = folder.reference(stream.id)
    rows = ReferenceAppender(path)
    referee = Referee(golden, stream.id)
    with SourceProcess(stream.first_pass, golden.classes) as source:
        for count, (frame, _) in enumerate(source.frames(), start=1):
            if frame.t_us >= until_us:
                break
            judged = referee.judge(frame)
            if judged is None:
                return
            rows.add(judged)
            if count % _TELL_EVERY == 0:
                _LOG.info("%s: %d frames have their reference labels", stream.id, count)
    rows.flush()
    merge_reference(path)
