"""Audits in the micro-profiler: frames that wait for them, and their comparison within a preparation."""

import logging
import threading
from collections.abc import Callable, Sequence

from ekya.core.preparation_events import AccuracyAudited
from ekya.core.units import StreamId
from ekya.models.edge.device_memory import end_process_if_gpu_is_lost, free_cache
from ekya.pipeline.audit import DrawnFrames, audit
from ekya.pipeline.golden_inference import MeteredGolden
from ekya.pipeline.settings import PreparationSettings
from ekya.runtime.actors.preparation_job import PreparationJob
from ekya.runtime.shares.job_share import JobStoppedError

_LOG = logging.getLogger(__name__)


class Auditor:
    """Audits streams, and keeps the frames of each that are not audited yet, in bounded memory.

    What a preparation had no time for is joined with what is drawn later, so that all frames that arrived
    stay equally likely to be audited. Any thread may add frames.

    Args:
        most: number of frames of a stream.
        golden: the golden model.
        now_us: run time.
        emit: takes the events.
    """

    def __init__(
        self,
        most: int,
        golden: MeteredGolden,
        now_us: Callable[[], int],
        emit: Callable[[AccuracyAudited], None],
    ) -> None:
        self._most, self._golden, self._now_us, self._emit = most, golden, now_us, emit
        self._lock = threading.Lock()
        self._waiting: dict[StreamId, tuple[PreparationSettings, DrawnFrames]] = {}

    def add_frames(self, stream: StreamId, settings: PreparationSettings, drawn: DrawnFrames) -> None:
        """Adds frames of a stream."""
        if not drawn.arrived:
            return
        with self._lock:
            if stream in self._waiting:
                drawn = self._waiting[stream][1].joined(drawn, self._most, settings.seed)
            self._waiting[stream] = settings, drawn

    def forget_stream(self, stream: StreamId) -> None:
        """Forgets the frames of a stream."""
        with self._lock:
            self._waiting.pop(stream, None)

    def waiting_streams(self) -> tuple[StreamId, ...]:
        """Returns the streams that wait, those that have waited longest first."""
        with self._lock:
            return tuple(self._waiting)

    def audit_streams(self, preparation: PreparationJob, streams: Sequence[StreamId]) -> None:
        """Audits those of these streams that wait.

        Raises:
            JobStoppedError: the preparation's time is up; what is left goes on waiting.
        """
        for stream in streams:
            with self._lock:
                taken = self._waiting.pop(stream, None)
            if taken is not None:
                self._audit(preparation, stream, *taken)

    def _audit(
        self, preparation: PreparationJob, stream: StreamId, settings: PreparationSettings, drawn: DrawnFrames
    ) -> None:
        scope, golden = preparation.share.batch, self._golden
        try:
            counts = audit(drawn, golden, settings, stream, scope, golden.gpu_s)
        except JobStoppedError:
            self.add_frames(stream, settings, drawn)
            raise
        except Exception as error:
            _LOG.exception("%s: its audit failed; it has no result", stream)
            end_process_if_gpu_is_lost(error)
            return
        finally:
            free_cache()
        if counts.counted:
            window, used_s = preparation.command.window, preparation.used_s
            correct, counted = counts.correct, counts.counted
            self._emit(
                AccuracyAudited(self._now_us(), stream, window, drawn.arrived, correct, counted, used_s)
            )
