"""Inference of one stream: receives frames as they arrive and answers all of them, at its share."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ekya.core.configs import InferenceConfig
from ekya.core.events import (
    Event,
    FramesCounted,
    ModelSwapped,
    NeedMeasured,
    Role,
    RolledBack,
    ShareMeasured,
    StreamBack,
    StreamEnded,
    StreamLost,
    WorkerDied,
)
from ekya.core.records import FramePrediction, FrameReference
from ekya.core.units import BASE_VERSION, JobId, ModelVersion
from ekya.gpu.backends.backend import Resized
from ekya.gpu.cuda_ipc import CudaIpc
from ekya.models.edge.checkpoints import from_bytes
from ekya.models.edge.device_memory import end_process_if_gpu_is_lost
from ekya.models.edge.model import EdgeModel
from ekya.models.edge.multi_model import Answer, Asked, Member
from ekya.models.golden.detections import Proposals
from ekya.pipeline.collector import WindowMaterial
from ekya.pipeline.frame_costs import FrameCosts, FrameTally
from ekya.pipeline.inference import Classifier, InferenceWorker
from ekya.pipeline.record import FrameRecord
from ekya.pipeline.setup import crop_side, fleet_classes, proposer_for, stream_setup
from ekya.results.metrics.health import FrameCount
from ekya.results.storage.run_state import StreamRow
from ekya.results.storage.run_tables import read_predictions
from ekya.runtime.actor_kinds import StreamActorConfig
from ekya.runtime.cuda_ipc_transfer import LentWeights, borrow, open_ipc
from ekya.runtime.mailbox import RunClock
from ekya.runtime.ready import Ready
from ekya.runtime.shared_process import SharedProcess
from ekya.runtime.warming_up import warmed_up
from ekya.streams.ingest.feed import Feed
from ekya.streams.ingest.frame import Frame
from ekya.streams.ingest.process import Arrived, Pace

_LOG = logging.getLogger(__name__)

MEASURE_EVERY_S = 5.0
_POLL_S = 0.05
_FLUSH_EVERY_S = 1.0
_LAST_POLL_S, _REST_S = 0.2, 5.0


@dataclass(slots=True, eq=False)
class _Swap:
    """Weights that are ready to serve, and their event.

    Attributes:
        member: the weights in the form for calls together with other streams'.
        told: makes the event of the hot swap, from its run time and its stall in microseconds.
    """

    classifier: Classifier
    member: Member
    version: ModelVersion
    told: Callable[[int, int], ModelSwapped | RolledBack]


@dataclass(slots=True, eq=False)
class _Control:
    """State shared with other threads, guarded by its lock.

    Attributes:
        looking: whether the loop is analysing a frame.
    """

    lock: threading.Condition = field(default_factory=threading.Condition)
    config: InferenceConfig | None = None
    share_milli: int = 0
    newest_order: int = 0
    looking: bool = False
    swap: _Swap | None = None
    newest: ModelVersion = BASE_VERSION
    stop: bool = False


class StreamInference:
    """Inference of one stream. Methods may be called by several threads; one loop does the work.

    Args:
        orders: of the stream.
        feed: its frames, not begun.
        process: in which it runs, alone or beside other streams.
        model: that serves first; must not change any more.
    """

    def __init__(
        self, orders: StreamActorConfig, feed: Feed, process: SharedProcess, model: EdgeModel
    ) -> None:
        common = orders.common
        self._orders = orders
        self._process = process
        self._stream = common.fleet.streams[orders.place]
        self._source = feed
        setup = stream_setup(common.fleet, orders.place, feed.wait_open(), common.seed)
        self._settings = replace(
            setup.settings,
            device=common.device,
            inference_speed=common.inference_speed,
        )
        self._worker = InferenceWorker(
            fleet_classes(common.fleet),
            model,
            proposer_for(common.fleet, self._stream),
            setup.collector(),
            self._settings.side,
            setup.window_us,
            process.predictors,
        )
        self._worker.use(self._worker.classifier, orders.version)
        self._member = self._made_ready(model, self._worker.classifier)
        # A share keeps the keys of parts that have ended, so a key must not keep weights alive.
        self._part = object()
        process.use.enter(self._part)
        self._record = FrameRecord(common.folder, self._stream.id)
        self._control = _Control(newest=orders.version)
        self._ipc: CudaIpc | None = None
        self._costs = FrameCosts(self._settings.fps, common.inference_speed)
        self._tally = FrameTally()
        self._arrived = 0
        self._last_analysed = -1
        self._told_lost: bool | None = False
        self._thread: threading.Thread | None = None

    def ready(self) -> Ready:
        """Warms up the model and returns the stream's settings."""
        resolutions = self._orders.common.fleet.inference.resolutions
        known = warmed_up(self._settings, self._worker.classifier, resolutions)
        return replace(known, died=self._source.died)

    def begin(self, started_monotonic_ns: int) -> None:
        """Starts the stream. A replacement of a dead worker resumes where its record of answers ends."""
        done = read_predictions(self._orders.common.folder.predictions(self._stream.id)).frame
        self._arrived = int(done[-1]) + 1 if len(done) else 0
        self._clock = RunClock(started_monotonic_ns)
        if self._clock.now_us() > 0:
            # A replacement: what the loop was told about the camera came from its predecessor.
            self._told_lost = None
        self._source.begin(Pace(started_monotonic_ns), self._arrived)
        self._thread = threading.Thread(target=self._serve, name=f"inference/{self._stream.id}", daemon=True)
        self._thread.start()

    def configure(self, config: InferenceConfig, share_milli: int, serial: int) -> Resized | None:
        """Sets λ and share; a frame that waits for the share gets the new one immediately.

        Returns when the share holds; None if a newer order has overtaken this one.
        """
        with self._control.lock:
            if serial > self._control.newest_order:
                self._control.newest_order = serial
                self._control.config, self._control.share_milli = config, share_milli
            if share_milli == 0:
                # A frame that waits for the share is still analysed at the old one: at share 0 it would
                # wait for ever, and with it the loop, which must report when the camera is back.
                self._control.lock.wait_for(
                    lambda: not self._control.looking or self._control.newest_order > serial
                )
        return self._process.share.resize(serial, share_milli, self._part)

    def swap(self, weights: bytes, validation_accuracy: float, version: ModelVersion, job: JobId) -> None:
        """Prepares new weights beside those that serve; they serve from the next frame on.

        If several are prepared concurrently, the newest version wins, in any order of completion. A version
        that ``take`` has already prepared is ignored.
        """
        with self._control.lock:
            is_newer = version > self._control.newest
        if is_newer:
            told = self._swapped(version, job, validation_accuracy)
            self._serve_next(from_bytes(weights), version, told)

    def take(self, lent: LentWeights, validation_accuracy: float, version: ModelVersion, job: JobId) -> None:
        """Does ``swap`` with weights that the trainer shares over CUDA IPC; they can be freed afterwards.

        Raises:
            SmDriverError, DamagedWeightsError: they cannot be read; ``swap`` gets them from the object store.
        """
        self._serve_next(self._borrow(lent), version, self._swapped(version, job, validation_accuracy))

    def try_loan(self, lent: LentWeights) -> None:
        """Copies shared weights as ``take`` does, and discards them; raises as ``take``."""
        self._borrow(lent)

    def roll_back(self, weights: bytes, version: ModelVersion, of: ModelVersion) -> None:
        """Does ``swap`` with weights that have served before, as version ``of``."""
        stream = self._stream.id
        self._serve_next(
            from_bytes(weights),
            version,
            lambda t_us, stall_us: RolledBack(t_us, stream, version, of, stall_us),
        )

    def _swapped(
        self, version: ModelVersion, job: JobId, validation_accuracy: float
    ) -> Callable[[int, int], ModelSwapped]:
        stream = self._stream.id
        return lambda t_us, stall_us: ModelSwapped(t_us, stream, version, job, validation_accuracy, stall_us)

    def _borrow(self, lent: LentWeights) -> EdgeModel:
        self._ipc = self._ipc or open_ipc()
        return borrow(self._ipc, lent, self._orders.common.device)

    def _serve_next(
        self, model: EdgeModel, version: ModelVersion, told: Callable[[int, int], ModelSwapped | RolledBack]
    ) -> None:
        classifier = self._worker.ready(model)
        swap = _Swap(classifier, self._made_ready(model, classifier), version, told)
        if self._ipc is not None:
            # Weights that came over CUDA IPC are prepared asynchronously on the GPU: wait for that.
            self._ipc.finish()
        with self._control.lock:
            if version > self._control.newest:
                self._control.newest, self._control.swap = version, swap

    def material(self, window: int) -> WindowMaterial:
        """Returns the frames that were kept of a past window."""
        return self._worker.material(window)

    def leave(self) -> None:
        """Stops and releases everything, while other streams go on in this process."""
        self.stop()
        if self._thread is not None:
            self._thread.join()
        self._let_go()
        self._record.flush()
        self._source.close()

    def stop(self) -> None:
        """Stops the analysis of frames."""
        with self._control.lock:
            self._control.stop = True

    def end(self, horizon_us: int) -> StreamRow:
        """Answers the remaining frames up to the end of the run after ``stop``, and returns frame counts."""
        if self._thread is not None:
            self._thread.join()
        self._take_rest(horizon_us)
        self._record.flush()
        finest = InferenceConfig(1, crop_side(self._orders.common.fleet))
        self._record.add_shadow(self._worker.base_answers(finest))
        self._source.close()
        return StreamRow(self._stream.id, self._arrived, self._source.damaged, self._source.died)

    def _made_ready(self, model: EdgeModel, classifier: Classifier) -> Member:
        return self._process.models.add(self._stream.id, model, classifier.predictor)

    def _serve(self) -> None:
        """Runs the loop; a failure ends only this stream's worker and is reported as an event."""
        try:
            self._run()
        except Exception as error:
            _LOG.exception("%s: its inference has failed", self._stream.id)
            end_process_if_gpu_is_lost(error)
            self._let_go()
            reason = f"{type(error).__name__}: {error}"
            self._tell(WorkerDied(max(self._clock.now_us(), 0), self._stream.id, Role.INFERENCE, reason))

    def _let_go(self) -> None:
        self._process.share.leave(self._part)
        self._process.use.leave(self._part)
        self._process.models.remove(self._stream.id)

    def _run(self) -> None:
        measured_s = flushed_s = time.monotonic()
        while not self._stopped():
            arrived = self._source.poll(_POLL_S)
            self._tell_of_camera(bool(arrived))
            self._take(arrived, None)
            now_s = time.monotonic()
            if now_s - measured_s >= MEASURE_EVERY_S:
                measured_s = now_s
                self._tell_share()
            if now_s - flushed_s >= _FLUSH_EVERY_S:
                flushed_s = now_s
                self._record.flush()
            self._serve_new_weights()
            if self._source.ended:
                self._tell_of_end()
                return

    def _take(self, arrived: list[Arrived], horizon_us: int | None) -> None:
        """Answers every frame that arrived; analyses at most the newest, and none with a ``horizon_us``."""
        for frame in arrived:
            if horizon_us is not None and frame.t_us >= horizon_us:
                return
            if frame.index < self._arrived:
                continue
            self._arrived = frame.index + 1
            answer = self._answer(frame, look=horizon_us is None)
            self._tell_frames(self._tally.add(answer))
            self._costs.add(answer)
            self._record.add([answer], _reference(frame))

    def _take_rest(self, horizon_us: int) -> None:
        """Answers the frames that arrived before the run's end and are still queued."""
        give_up_s = time.monotonic() + _REST_S
        while arrived := self._source.poll(_LAST_POLL_S):
            self._take(arrived, horizon_us)
            if arrived[-1].t_us >= horizon_us or time.monotonic() > give_up_s:
                return

    def _answer(self, arrived: Arrived, look: bool) -> FramePrediction:
        """Returns the answer to a frame. Without a share none is analysed: the loop must not wait for one."""
        frame = arrived.frame
        with self._control.lock:
            config = self._control.config or InferenceConfig(1, self._settings.side)
            if frame is None or not look or self._control.share_milli == 0:
                return self._worker.skip(arrived.index, arrived.t_us, config)
            self._control.looking = True
        try:
            return self._look(arrived, frame, config)
        finally:
            with self._control.lock:
                self._control.looking = False
                self._control.lock.notify_all()

    def _look(self, arrived: Arrived, frame: Frame, config: InferenceConfig) -> FramePrediction:
        analyse = arrived.index // config.every > self._last_analysed // config.every
        proposals = None if frame.boxes is None else Proposals(frame.boxes)
        if proposals is None and (analyse or self._worker.wants(frame.t_us)):
            with self._process.handle.scope():
                proposals = self._worker.propose(frame)
            self._process.use.count(self._part, 1)
        if proposals is not None:
            self._worker.see(frame, proposals)
        if proposals is None or not analyse or self._stopped():
            if proposals is not None and frame.boxes is None:
                self._costs.count_found()
            return self._worker.skip(arrived.index, arrived.t_us, config)
        self._last_analysed = arrived.index
        # Outside the share's scope: crops are cut on the CPU, and the GPU should not wait for them.
        objects = self._worker.cut(frame, proposals.boxes)
        answer = self._worker.classify([objects], config, self._ask)[0]
        self._worker.answered(arrived.index)
        return answer

    def _ask(self, crops: NDArray[np.uint8], resolution: int) -> Answer:
        """Asks the weights that serve when the call begins, in one batch with other streams."""

        def question() -> Asked:
            self._serve_new_weights()
            return Asked(self._member, crops, resolution)

        answer = self._process.calls.ask(question)
        self._process.use.count(self._part, len(crops))
        return self._worker.classifier.in_fleet(answer)

    def _serve_new_weights(self) -> None:
        with self._control.lock:
            swap, self._control.swap = self._control.swap, None
        if swap is None:
            return
        began_ns = time.monotonic_ns()
        self._member = swap.member
        self._worker.use(swap.classifier, swap.version)
        stall_us = (time.monotonic_ns() - began_ns) // 1000
        self._tell(swap.told(self._clock.now_us(), stall_us))

    def _tell_share(self) -> None:
        now_us, used = self._clock.now_us(), self._process.use.measured(self._part)
        self._tell(ShareMeasured(now_us, self._stream.id, Role.INFERENCE, used.share_milli))
        seen = self._costs.since_told(used.used_us, self._process.share.holds_milli)
        if seen is not None:
            config, share_milli = seen
            self._tell(NeedMeasured(now_us, self._stream.id, config, share_milli))
        self._tell_frames(self._tally.take())

    def _tell_frames(self, counted: tuple[int, FrameCount] | None) -> None:
        if counted is not None:
            window, frames = counted
            now_us = max(self._clock.now_us(), 0)
            self._tell(FramesCounted(now_us, self._stream.id, window, frames.due, frames.analysed))

    def _tell_of_camera(self, frames_came: bool) -> None:
        """Reports once each when a live camera, or one with scripted outages, is lost and when it is back."""
        lost = self._source.lost
        may_be_lost = self._stream.source.live or bool(self._stream.play.outages_us)
        if not may_be_lost or (lost is not None) == self._told_lost:
            return
        if lost is not None:
            self._told_lost = True
            self._tell(StreamLost(max(0, self._clock.now_us()), self._stream.id, lost))
        elif frames_came:
            self._told_lost = False
            self._tell(StreamBack(self._clock.now_us(), self._stream.id))

    def _tell_of_end(self) -> None:
        """Reports the end of a recording; first the reason as a loss, if its decoder died."""
        self._record.flush()
        now_us, died = self._clock.now_us(), self._source.died
        if died is not None:
            self._tell(StreamLost(now_us, self._stream.id, died))
        self._tell(StreamEnded(now_us, self._stream.id))

    def _tell(self, event: Event) -> None:
        self._process.mailbox.put(event)

    def _stopped(self) -> bool:
        with self._control.lock:
            return self._control.stop


def _reference(arrived: Arrived) -> list[FrameReference]:
    truth = arrived.truth
    if truth is None:
        return []
    return [
        FrameReference(arrived.index, arrived.t_us, truth.boxes, truth.classes.astype(np.int16), truth.tracks)
    ]
