"""Drawn frames that wait for their audit in the micro-profiler."""

import threading

from ekya.core.units import StreamId
from ekya.pipeline.audit import DrawnFrames
from ekya.pipeline.settings import PreparationSettings


class PendingAudits:
    """Frames of each stream that are not audited yet, in bounded memory. Any thread may call.

    What a preparation had no time for is joined with what is drawn later, so that all frames that arrived
    stay equally likely to be audited.

    Args:
        most: number of frames of a stream.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._waiting: dict[StreamId, tuple[PreparationSettings, DrawnFrames]] = {}

    def add(self, stream: StreamId, settings: PreparationSettings, drawn: DrawnFrames) -> None:
        """Adds frames of a stream."""
        if not drawn.arrived:
            return
        with self._lock:
            if stream in self._waiting:
                drawn = self._waiting[stream][1].joined(drawn, self._most, settings.seed)
            self._waiting[stream] = settings, drawn

    def take(self, stream: StreamId) -> tuple[PreparationSettings, DrawnFrames] | None:
        """Returns the frames of a stream, and forgets them; None without any."""
        with self._lock:
            return self._waiting.pop(stream, None)

    def streams(self) -> tuple[StreamId, ...]:
        """Returns the streams that wait, those that have waited longest first."""
        with self._lock:
            return tuple(self._waiting)
