"""Analysis of single frames of a stream beside other streams, and the events that its inference reports."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ekya.config.fleet_sections import StreamConfig
from ekya.core import events as ev
from ekya.core.configs import GOLDEN_RESOLUTION, InferenceConfig
from ekya.core.host import StreamCosts
from ekya.core.records import FramePrediction
from ekya.core.units import ModelVersion, StreamId
from ekya.gpu.backends.backend import Measured
from ekya.models.golden.detections import ON_CPU, Proposals, RunsOn
from ekya.pipeline.device_scopes import DeviceScopes
from ekya.pipeline.frame_admission import FrameWay, choose_way, is_due_after, needs_objects
from ekya.pipeline.frame_costs import FrameCosts, FrameTally
from ekya.pipeline.golden_inference import GoldenInference
from ekya.pipeline.inference import FrameSteps
from ekya.results.metrics.health import FrameCount
from ekya.runtime.actors.actor_messages import Mailbox, RunClock
from ekya.runtime.shares.job_share import SharedUse, VersionedShare
from ekya.runtime.weights.model_batcher import ModelBatcher
from ekya.streams.ingest.feed import Feed
from ekya.streams.ingest.frame import Frame


@dataclass(frozen=True, slots=True, eq=False)
class InferenceProcess:
    """Parts that the streams of a process share.

    Attributes:
        scopes: contexts of work that a stream does alone.
        share: of which each stream has a part.
        use: GPU use of each stream.
        models: their models.
        mailbox: their events.
        golden: analyses their frames where λ is of it.
    """

    scopes: DeviceScopes
    share: VersionedShare
    use: SharedUse
    models: ModelBatcher
    mailbox: Mailbox
    golden: GoldenInference


@dataclass(slots=True, eq=False)
class FrameAnalysis:
    """Analyses frames of one stream, one after the other, and counts their use of the GPU.

    Attributes:
        stream: its id.
        steps: of its frames.
        process: in which it runs.
        part: its key in the process's share and use.
        costs: of its frames.
        found: counts frames in which objects were found.
        stopped: returns whether frames are not analysed any more.
        version: of the model that serves.
        gpu_is_slower: whether the last analysed frame waited longer for the model than for all before it.
    """

    stream: StreamId
    steps: FrameSteps
    process: InferenceProcess
    part: object
    costs: StreamCosts
    found: FrameCosts
    stopped: Callable[[], bool]
    version: ModelVersion
    gpu_is_slower: bool = field(default=False, init=False)
    _last_analysed: int = field(default=-1, init=False)

    def analyse_frame(self, frame: Frame, config: InferenceConfig) -> FramePrediction | None:
        """Finds and names the objects of a frame; None if λ skips it and no boxes are followed into it."""
        began_s = time.monotonic()
        due = is_due_after(self._last_analysed, frame.index, config.every)
        proposals = self._propose(frame, due)
        if proposals is None:
            return None
        self.steps.collect(frame, proposals)
        way = FrameWay.PASS_OVER if self.stopped() else choose_way(config, due)
        if way is not FrameWay.ANALYSE:
            if not self.steps.proposes_free:
                self.found.count_found()
            return self._follow(frame, config) if way is FrameWay.FOLLOW else None
        self._last_analysed = frame.index
        if config.by_golden:
            return self._ask_golden(frame, config)
        # Outside the share's scope: crops are cut on the CPU, and the GPU should not wait for them.
        ready = self.steps.cut(frame, proposals.boxes, config.resolution)
        cut_s = time.monotonic()
        answer, version = self.process.models.answer_images(self.stream, ready.images, config.resolution)
        self.gpu_is_slower = time.monotonic() - cut_s > cut_s - began_s
        self.process.use.count_pictures(self.part, len(ready.images))
        (row,) = self.steps.prediction_rows([ready], config, version, answer)
        self.steps.answered(frame.index)
        return row

    def _ask_golden(self, frame: Frame, config: InferenceConfig) -> FramePrediction:
        row = self.steps.ask_golden(frame, config, self.version)
        self._count_use(self.process.golden.runs_on, self.costs.frame_gpu_s[GOLDEN_RESOLUTION])
        return row

    def _follow(self, frame: Frame, config: InferenceConfig) -> FramePrediction | None:
        """Follows boxes into a frame that λ skips; None if there are none to follow."""
        with self.process.scopes.host():
            followed = self.steps.follow(frame, config, self.version)
        if followed is None:
            return None
        self._count_use(ON_CPU, self.costs.following_gpu_s[config.resolution])
        return followed[0]

    def _count_use(self, where: RunsOn, gpu_s: float) -> None:
        """Counts charged work beside the edge model: use is divided by pictures of that model."""
        if self.process.scopes.charges(where.device):
            self.process.use.count_pictures(self.part, gpu_s / self.costs.object_gpu_s)

    def _propose(self, frame: Frame, due: bool) -> Proposals | None:
        """Proposes the objects of a frame that is analysed or collected."""
        if not needs_objects(self.steps, frame.t_us, due):
            return None
        if self.steps.proposes_free:
            return self.steps.propose(frame)
        # What the proposer does on a GPU has its scope in there.
        with self.process.scopes.host():
            proposals = self.steps.propose(frame)
        self._count_use(self.steps.proposes_on, self.costs.object_gpu_s)
        return proposals


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

    def count_frame(self, row: FramePrediction, gpu_is_late: bool) -> None:
        """Counts an answered frame; reports the count of a window at the first frame of the next one."""
        self.costs.add(row)
        self._counted(self._tally.add(row, gpu_is_late))

    def report_share_use(self, used: Measured, held_milli: int) -> None:
        """Reports the use of the share since the last call, what λ needs by it, and the frames so far."""
        now_us = self.clock.now_us()
        self.report_event(ev.ShareMeasured(now_us, self._stream, ev.Role.INFERENCE, used.share_milli))
        needed = self.costs.measure(used.used_us, held_milli)
        if needed is not None:
            self.report_event(ev.NeedMeasured(now_us, self._stream, *needed))
        self._counted(self._tally.drain_counts())

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
            counted_frames = frames.due, frames.analysed, frames.late_gpu
            self.report_event(ev.FramesCounted(now_us, self._stream, window, *counted_frames))
