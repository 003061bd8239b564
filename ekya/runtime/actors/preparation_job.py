"""One preparation in the actor `micro-profiler`: streams as they hand in, their labels, share and audits."""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ekya.core.commands import BeginPreparation, PrepareStream
from ekya.core.preparation_events import AccuracyAudited
from ekya.core.units import US_PER_S, StreamId
from ekya.gpu.backends.backend import Resized
from ekya.models.edge.device_memory import end_process_if_gpu_is_lost, free_cache
from ekya.pipeline.audit import DrawnFrames, audit
from ekya.pipeline.golden_inference import MeteredGolden
from ekya.pipeline.labels import StreamLabels
from ekya.pipeline.settings import PreparationSettings
from ekya.pipeline.stream_preparation import StreamPreparation
from ekya.runtime.shares.job_share import JobShare, JobStoppedError


@dataclass(slots=True, eq=False)
class PreparationJob:
    """A preparation: the streams that have handed in their frames, and what is made of them.

    Attributes:
        share: its use is reported in the events of the preparation, and measures the cost of trials.
        changed: guards and announces changes of ``streams``, ``waiting`` and the end.
        waiting: streams of which nothing is done yet, in order.
        overdue: streams whose audit the preparation before had no time for. They are audited right after
            their labels, or they might never be.
    """

    command: BeginPreparation
    share: JobShare
    waiting: list[StreamId]
    changed: threading.Condition = field(default_factory=threading.Condition)
    streams: dict[StreamId, StreamPreparation] = field(default_factory=dict)
    labels: dict[StreamId, StreamLabels] = field(default_factory=dict)
    overdue: tuple[StreamId, ...] = ()
    has_ended: bool = False

    def streams_to_prepare(self) -> tuple[PrepareStream, ...]:
        """Returns the streams that are still to be prepared; none once the time is up."""
        with self.changed:
            left = () if self.has_ended else self.waiting
            return tuple(one for one in self.command.streams if one.stream in left)

    @property
    def inference_first(self) -> frozenset[StreamId]:
        """Streams of which λ are profiled before they are labelled, if they are."""
        return frozenset(one.stream for one in self.command.streams if one.inference_first)

    def next_handed_in(self, inference_first: bool, timeout_s: float | None) -> StreamId | None:
        """Waits for the next stream that has handed in; returns None if it is another, or after the timeout.

        Args:
            inference_first: of ``inference_first``, or of the other streams.
            timeout_s: of the wait; None for none.
        """
        first = self.inference_first
        among = [one.stream for one in self.command.streams if (one.stream in first) == inference_first]

        def is_over() -> bool:
            return self.has_ended or not any(one in self.waiting for one in among)

        with self.changed:
            # Others that are there do not wait for a late one: these steps come again in the next round.
            self.changed.wait_for(lambda: is_over() or self._handed_in(self.waiting) is not None, timeout_s)
            stream = None if self.has_ended else self._handed_in(among)
            if stream is not None:
                self.waiting.remove(stream)
            return stream

    def has_begun(self, stream: StreamId) -> bool:
        """Returns whether a stream has handed in, and a step of it was begun."""
        with self.changed:
            return stream in self.streams and stream not in self.waiting

    def drain_overdue(self, stream: StreamId | None = None) -> tuple[StreamId, ...]:
        """Returns the overdue streams, or this one if it is, and removes them."""
        taken = tuple(one for one in self.overdue if stream in (None, one))
        self.overdue = tuple(one for one in self.overdue if one not in taken)
        return taken

    def drop_stream(self, stream: StreamId) -> None:
        """Removes a stream that cannot hand anything in."""
        with self.changed:
            self.waiting.remove(stream)
            self.changed.notify_all()

    def _handed_in(self, among: Sequence[StreamId]) -> StreamId | None:
        return next((one for one in self.waiting if one in among and one in self.streams), None)

    def end_job(self) -> Resized:
        """Drops unfinished work, since the time is up; returns when the last batch is over."""
        with self.changed:
            self.has_ended = True
            self.changed.notify_all()
        return self.share.stop_job()

    @property
    def used_s(self) -> float:
        """GPU-seconds used since this was last read."""
        return self.share.unreported_us() / US_PER_S


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
        scopes, golden = preparation.share.scopes, self._golden
        try:
            counts = audit(drawn, golden, settings, stream, scopes, golden.gpu_s)
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
