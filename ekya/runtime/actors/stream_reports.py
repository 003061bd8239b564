"""Events of one stream's inference: use of its share, counts of frames, its camera and its end."""

from ekya.config.fleet_sections import StreamConfig
from ekya.core import events as ev
from ekya.core.records import FramePrediction
from ekya.gpu.backends.backend import Measured
from ekya.pipeline.frame_costs import FrameCosts, FrameTally
from ekya.results.metrics.health import FrameCount
from ekya.runtime.actors.mailbox import Mailbox, RunClock
from ekya.streams.ingest.feed import Feed


class StreamReports:
    """Reports what one stream's inference does, and measures what its frames cost.

    Called by the stream's loop only, but for ``report_event``.

    Args:
        stream: of the fleet file.
        feed: its frames.
        mailbox: that takes the events.
        costs: of its frames.

    Attributes:
        costs: the same.
        clock: run time, once the stream has begun.
    """

    def __init__(self, stream: StreamConfig, feed: Feed, mailbox: Mailbox, costs: FrameCosts) -> None:
        self.costs = costs
        self._stream, self._feed, self._mailbox = stream.id, feed, mailbox
        # A live camera, or one with scripted outages.
        self._may_be_lost = stream.source.live or bool(stream.play.outages_us)
        self._tally = FrameTally()
        self._reported_lost: bool | None = False

    def start_run(self, clock: RunClock) -> None:
        """Starts, at time 0 of the run, or later in place of a dead worker."""
        self.clock = clock
        if clock.now_us() > 0:
            # What was reported of the camera came from the predecessor.
            self._reported_lost = None

    def report_event(self, event: ev.Event) -> None:
        """Reports an event."""
        self._mailbox.put(event)

    def count_frame(self, row: FramePrediction) -> None:
        """Counts an answered frame; reports the count of a window at the first frame of the next one."""
        self.costs.add(row)
        self._counted(self._tally.add(row))

    def report_share_use(self, used: Measured, held_milli: int) -> None:
        """Reports the use of the share since the last call, what λ needs by it, and the frames so far."""
        now_us = self.clock.now_us()
        self.report_event(ev.ShareMeasured(now_us, self._stream, ev.Role.INFERENCE, used.share_milli))
        needed = self.costs.measure(used.used_us, held_milli)
        if needed is not None:
            self.report_event(ev.NeedMeasured(now_us, self._stream, *needed))
        self._counted(self._tally.take())

    def report_camera(self, frames_came: bool) -> None:
        """Reports once each when a camera is lost and when it is back."""
        lost = self._feed.lost
        if not self._may_be_lost or (lost is not None) == self._reported_lost:
            return
        if lost is not None:
            self._reported_lost = True
            self.report_event(ev.StreamLost(max(0, self.clock.now_us()), self._stream, lost))
        elif frames_came:
            self._reported_lost = False
            self.report_event(ev.StreamBack(self.clock.now_us(), self._stream))

    def report_end(self) -> None:
        """Reports the end of a recording; first the reason as a loss, if its decoder died."""
        now_us, died = self.clock.now_us(), self._feed.died
        if died is not None:
            self.report_event(ev.StreamLost(now_us, self._stream, died))
        self.report_event(ev.StreamEnded(now_us, self._stream))

    def _counted(self, counted: tuple[int, FrameCount] | None) -> None:
        if counted is not None:
            window, frames = counted
            now_us = max(self.clock.now_us(), 0)
            self.report_event(ev.FramesCounted(now_us, self._stream, window, frames.due, frames.analysed))
