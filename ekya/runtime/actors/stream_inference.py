"""Inference of one stream: decodes, proposes, classifies and records its frames, at its share.

The way of a frame is ``_run`` → ``_answer`` → ``FrameAnalysis.analyse_frame``; see there.
"""

import logging
import threading
import time
from dataclasses import dataclass, field, replace

from ekya.core import events as ev
from ekya.core.areas import Areas
from ekya.core.configs import InferenceConfig
from ekya.core.objects import BACKGROUND, SURE
from ekya.core.records import FramePrediction
from ekya.core.units import JobId, ModelVersion
from ekya.gpu.backends.backend import Resized
from ekya.models.edge.architecture_table import Task
from ekya.models.edge.checkpoints import from_bytes
from ekya.models.edge.device_memory import end_process_if_gpu_is_lost
from ekya.models.edge.model import EdgeModel
from ekya.pipeline.audit import DrawnFrames, FrameDraw
from ekya.pipeline.collector import WindowMaterial
from ekya.pipeline.frame_costs import FrameCosts
from ekya.pipeline.inference import FrameSteps
from ekya.pipeline.run_writer import FrameRecord, HourRecord
from ekya.pipeline.setup import crop_side, drift_monitor, proposer_for, stream_setup
from ekya.results.boxed_picture import BoxStyle, DrawnBox, draw_boxes
from ekya.results.storage.run_state import StreamRow
from ekya.runtime.actors.actor_kinds import Ready, StreamActorConfig
from ekya.runtime.actors.actor_messages import RunClock
from ekya.runtime.actors.frame_analysis import FrameAnalysis, InferenceProcess, StreamReports
from ekya.streams.ingest.feed import Feed
from ekya.streams.ingest.frame import Frame
from ekya.streams.ingest.process import Arrived
from ekya.system.host import give_back_freed

_LOG = logging.getLogger(__name__)

MEASURE_EVERY_S = 5.0
HUNG_S = 60.0
"""Time after which a loop that has not come to the next frame hangs. A thread that is started without memory
may die before it says that it lives, and who started it waits for ever."""

_POLL_S = 0.05
_FLUSH_EVERY_S = 1.0
_LAST_POLL_S, _REST_S = 0.2, 5.0


@dataclass(slots=True, eq=False)
class _Control:
    """State shared with other threads, guarded by its lock.

    Attributes:
        analysing: whether the loop is analysing a frame.
        paused: whether the camera is to be closed.
        shown: the newest frame with boxes of its own, and its answer; None before the first.
    """

    lock: threading.Condition = field(default_factory=threading.Condition)
    config: InferenceConfig | None = None
    share_milli: int = 0
    newest_serial: int = 0
    analysing: bool = False
    stop: bool = False
    paused: bool = False
    shown: tuple[Frame, FramePrediction] | None = None


class StreamInference:
    """Inference of one stream. Methods may be called by several threads; one loop does the work.

    Args:
        config: of the stream.
        feed: its frames, not begun.
        process: in which it runs, alone or beside other streams.
        model: that serves first; must not change any more.
    """

    def __init__(
        self, config: StreamActorConfig, feed: Feed, process: InferenceProcess, model: EdgeModel
    ) -> None:
        common = config.common
        self._config = config
        self._process = process
        self._stream = common.fleet.streams[config.place]
        self._feed = feed
        setup = stream_setup(common.fleet, config.place, feed.wait_open(), common.seed)
        self._settings = replace(
            setup.settings,
            device=common.device,
            inference_speed=common.inference_speed,
        )
        self._steps = FrameSteps(
            proposer_for(common.fleet, self._stream, process.scopes),
            setup.collector(),
            self._settings.task,
            process.golden,
            drift_monitor(common.fleet),
            measures_base=not common.keeps_hours,
        )
        self._first = model
        process.models.add_stream(
            self._stream.id, model, config.version, self._report_swap, config.alone_until_s
        )
        # A share keeps the keys of parts that have ended, so a key must not keep weights alive.
        self._part = object()
        process.use.add_owner(self._part)
        self._record: FrameRecord | HourRecord = (
            HourRecord(common.folder, self._stream.id)
            if common.keeps_hours
            else FrameRecord(common.folder, self._stream.id)
        )
        self._draw = FrameDraw(common.audit_frames, self._settings, setup.window_us)
        # The row whose boxes are those of frames without any.
        self._in_force: FramePrediction | None = None
        self._control = _Control()
        on_cores = common.device == "cpu"
        costs = FrameCosts(self._settings.fps, common.inference_speed, on_cores=on_cores)
        self._reports = StreamReports(self._stream, feed, process.mailbox, costs)
        self._analysis = FrameAnalysis(
            self._stream.id,
            self._steps,
            process,
            self._part,
            common.costs[self._stream.id],
            costs,
            self._stopped,
            config.version,
        )
        self._arrived = 0
        self._thread: threading.Thread | None = None
        self._over = False
        self._turned_s = time.monotonic()

    def warm_up(self) -> Ready:
        """Warms up the model and returns the stream's settings."""
        resolutions = self._config.common.fleet.inference.resolutions
        self._process.models.serving_weights(self._stream.id).model.warm_up(self._settings.side, resolutions)
        if self._config.common.fleet.inference.golden_every:
            self._process.golden.warm_up()
        return Ready(self._settings, self._feed.died)

    def start_run(self, started_monotonic_ns: int, from_now: bool = False) -> None:
        """Starts the stream. A replacement of a dead worker resumes where its record of answers ends.

        With ``from_now`` a recording shows nothing of the time before it was added.
        """
        clock = RunClock(started_monotonic_ns)
        self._arrived = self._record.next_frame()
        self._reports.start_run(clock)
        self._feed.start_frames(started_monotonic_ns, self._arrived, clock.now_us() if from_now else 0)
        thread = threading.Thread(target=self._serve, name=f"inference/{self._stream.id}", daemon=True)
        self._turned_s = time.monotonic()
        thread.start()
        self._thread = thread

    @property
    def is_lost(self) -> bool:
        """Whether its loop has ended without a report, or hangs, as where there was no memory."""
        if self._thread is None or self._over:
            return False
        return not self._thread.is_alive() or time.monotonic() - self._turned_s > HUNG_S

    def set_inference(self, config: InferenceConfig, share_milli: int, serial: int) -> Resized | None:
        """Sets λ and share; a frame that waits for the share gets the new one immediately.

        Returns when the share holds; None if a newer command has overtaken this one.
        """
        control = self._control
        with control.lock:
            if serial > control.newest_serial:
                control.newest_serial, control.config, control.share_milli = serial, config, share_milli
            if share_milli == 0:
                # A frame that waits for the share is still analysed at the old one: at share 0 it would
                # wait for ever, and with it the loop, which must report when the camera is back.
                control.lock.wait_for(lambda: not control.analysing or control.newest_serial > serial)
        return self._process.share.resize(serial, share_milli, self._part)

    def receive_checkpoint(
        self, weights: bytes, validation_accuracy: float, version: ModelVersion, job: JobId
    ) -> None:
        """Receives a checkpoint and prepares it beside the serving one; it serves from the next frame on.

        If several are prepared concurrently, the newest version wins, in any order of completion.
        """
        event = ev.ModelSwapped(0, self._stream.id, version, job, validation_accuracy, 0)
        self._prepare(weights, event)

    def roll_back(self, weights: bytes, version: ModelVersion, of: ModelVersion) -> None:
        """Does ``receive_checkpoint`` with weights that have served before, as version ``of``."""
        self._prepare(weights, ev.RolledBack(0, self._stream.id, version, of, 0))

    def _prepare(self, weights: bytes, event: ev.Swapped) -> None:
        model = from_bytes(weights)
        # What earlier models took: without this a process grows by megabytes with every hot swap.
        give_back_freed()
        prepared = self._process.models.prepare_weights(self._stream.id, model, event.version)
        self._process.models.serve_next(self._stream.id, prepared, event)

    def window_material(self, window: int, since_us: int | None) -> WindowMaterial:
        """Returns the frames of which a window's labels are made; see ``WindowCollector``."""
        return self._steps.collector.material(window, since_us)

    def drain_audit_frames(self) -> DrawnFrames:
        """Returns the frames that were drawn for an audit since the last time."""
        return self._draw.drain_sample()

    def set_paused(self, paused: bool) -> None:
        """Closes the camera, or opens it again; the loop does so within a second."""
        with self._control.lock:
            self._control.paused = paused

    def set_areas(self, areas: Areas) -> None:
        """Sets where objects count from the next frame on."""
        self._feed.set_areas(areas)

    def draw_picture(self) -> bytes | None:
        """Returns the newest frame with boxes of its own as a JPEG with these drawn; None without one."""
        with self._control.lock:
            shown = self._control.shown
        if shown is None:
            return None
        frame, row = shown
        names = self._settings.classes
        # Of a detector's boxes only the sure ones are objects; a classifier names boxes that are.
        least = SURE if self._settings.task is Task.DETECT else 0.0
        boxes = zip(row.boxes, row.classes.tolist(), row.confidence.tolist(), strict=True)
        drawn = [
            DrawnBox(box, BoxStyle.RIGHT, f"{names[index]} {round(100 * confidence)}%")
            for box, index, confidence in boxes
            if names[index] != BACKGROUND and confidence >= least
        ]
        return draw_boxes(frame.image, drawn, frame.areas)

    def stop_and_release(self) -> bool:
        """Stops and releases everything, while other streams go on in this process.

        Returns:
            Whether it has; a loop that hangs goes on holding what it has.
        """
        self.stop_analysis()
        if self._thread is not None:
            self._thread.join(HUNG_S)
            if self._thread.is_alive():
                return False
        self._release()
        self._record.flush()
        self._feed.close()
        return True

    def stop_analysis(self) -> None:
        """Stops the analysis of frames."""
        with self._control.lock:
            self._control.stop = True

    def finish_run(self, horizon_us: int) -> StreamRow:
        """Answers the frames that are left after ``stop_analysis``; returns the counts of all frames."""
        if self._thread is not None:
            self._thread.join()
        self._answer_rest(horizon_us)
        self._record.flush()
        if isinstance(self._record, FrameRecord):
            base = self._process.models.prepare_model(self._first)
            finest = InferenceConfig(1, crop_side(self._config.common.fleet))
            self._record.add_shadow(self._steps.base_answers(base, finest))
        self._feed.close()
        return StreamRow(self._stream.id, self._arrived, self._feed.damaged, self._feed.died)

    def _serve(self) -> None:
        """Runs the loop; a failure ends only this stream's worker and is reported as an event."""
        try:
            self._run()
        except Exception as error:
            self._fail(error)
        self._over = True

    def _fail(self, error: Exception) -> None:
        _LOG.error("%s: its inference has failed", self._stream.id, exc_info=error)
        end_process_if_gpu_is_lost(error)
        self._release()
        reason = f"{type(error).__name__}: {error}"
        now_us = max(self._reports.clock.now_us(), 0)
        self._reports.report_event(ev.WorkerDied(now_us, self._stream.id, ev.Role.INFERENCE, reason))

    def _release(self) -> None:
        self._process.share.end_part(self._part)
        self._process.use.remove_owner(self._part)
        self._process.models.remove_stream(self._stream.id)

    def _run(self) -> None:
        """Answers the frames that the decoder delivers, and reports, until the stream ends or is stopped."""
        measured_s = flushed_s = time.monotonic()
        while not self._stopped():
            with self._control.lock:
                paused = self._control.paused
            if paused:
                self._feed.pause_source()
            else:
                self._feed.resume_source()
            decoded = self._feed.poll_frames(_POLL_S)
            self._reports.report_camera(bool(decoded))
            for arrived in decoded:
                self._turned_s = time.monotonic()
                self._answer(arrived)
            now_s = self._turned_s = time.monotonic()
            if now_s - measured_s >= MEASURE_EVERY_S:
                measured_s = now_s
                used = self._process.use.measure_owner(self._part)
                self._reports.report_share_use(used, self._process.share.holds_milli)
            if now_s - flushed_s >= _FLUSH_EVERY_S:
                flushed_s = now_s
                self._record.flush()
            # Requests swap too; a camera without frames makes none, and its swap is to be reported as well.
            self._process.models.hot_swap(self._stream.id)
            if self._feed.ended:
                self._record.flush()
                self._reports.report_end()
                return

    def _answer_rest(self, horizon_us: int) -> None:
        """Records the frames that arrived before the run's end and are still queued, without analysis."""
        give_up_s = time.monotonic() + _REST_S
        while decoded := self._feed.poll_frames(_LAST_POLL_S):
            for arrived in decoded:
                if arrived.t_us >= horizon_us:
                    return
                self._answer(arrived, analyse=False)
            if time.monotonic() > give_up_s:
                return

    def _answer(self, arrived: Arrived, analyse: bool = True) -> None:
        """Records one answer to a frame: its own, or that of the newest analysed frame."""
        if arrived.index < self._arrived:
            return
        self._arrived = arrived.index + 1
        control = self._control
        with control.lock:
            config = control.config or InferenceConfig(1, self._settings.side)
            # Without a share no frame is analysed: the loop must not wait for one.
            frame = arrived.frame if analyse and control.share_milli else None
            control.analysing = frame is not None
        try:
            row = None if frame is None else self._analysis.analyse_frame(frame, config)
        finally:
            with control.lock:
                control.analysing = False
                control.lock.notify_all()
        if frame is not None and row is not None:
            with control.lock:
                control.shown = frame, row
        row = row or self._steps.skip(arrived.index, arrived.t_us, config, self._analysis.version)
        if row.answered_by == row.frame:
            self._in_force = row
        self._draw.sample_frame(arrived.t_us, arrived.frame, self._in_force)
        truth = arrived.truth
        self._record.add([row], [] if truth is None else [truth.to_reference(arrived.index, arrived.t_us)])
        self._reports.count_frame(row, self._analysis.gpu_is_slower)
        drift = self._steps.take_drift(self._stream.id, self._reports.clock.now_us())
        if drift is not None:
            self._reports.report_event(drift)

    def _report_swap(self, event: ev.Swapped, stall_us: int) -> None:
        self._analysis.version = event.version
        self._reports.report_event(replace(event, t_us=self._reports.clock.now_us(), stall_us=stall_us))

    def _stopped(self) -> bool:
        with self._control.lock:
            return self._control.stop
