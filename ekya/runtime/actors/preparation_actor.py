"""Actor `micro-profiler`: holds the golden model; labels, profiles λ and micro-profiles γ."""

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import cv2

from ekya.config.fleet_file import FleetConfig
from ekya.core import events as ev
from ekya.core.commands import BeginPreparation
from ekya.core.host import StreamCosts
from ekya.core.units import BASE_VERSION, ModelVersion, StreamId
from ekya.gpu.backends.backend import Resized, ShareJob
from ekya.models.edge.architecture_table import Task
from ekya.models.edge.multi_model import Predictors
from ekya.models.edge.self_test import device_clock
from ekya.models.golden.golden_model import open_golden
from ekya.models.training.exemplars import MOST_EXEMPLARS
from ekya.models.training.operations import forward_operations
from ekya.pipeline.audit import DrawnFrames
from ekya.pipeline.base_model import base_model
from ekya.pipeline.collector import WindowMaterial
from ekya.pipeline.costs import price_by
from ekya.pipeline.discover_classes import fleet_classes
from ekya.pipeline.golden_inference import MeteredGolden
from ekya.pipeline.inference import serving
from ekya.pipeline.labels import StreamLabels
from ekya.pipeline.settings import PreparationSettings
from ekya.pipeline.setup import crop_side
from ekya.pipeline.stream_preparation import StreamPreparation
from ekya.planning.placement.homes import PREPARATION_GPU
from ekya.runtime.actors.actor_kinds import ActorConfig
from ekya.runtime.actors.actor_messages import Mailbox, RunClock
from ekya.runtime.actors.preparation_job import Auditor, PreparationJob
from ekya.runtime.actors.preparation_work import KnownModels, PreparationWork
from ekya.runtime.shares.job_share import JobShare, JobStoppedError, NewestJob
from ekya.runtime.weights.model_batcher import PreparedWeights
from ekya.system.host import give_back_freed
from ekya.system.priority import TRAINING_NICENESS, lower_priority

_LOG = logging.getLogger(__name__)
_JOB = ShareJob("micro-profiler", "preparation", 0, PREPARATION_GPU)
_OVER = Resized(0, 0, "the preparation is over")
_ROUNDS = 1_000_000
"""More preparations than a window can have."""


class PreparationActor:
    """Labels and profiles all streams of a run. Methods may be called by several threads."""

    def __init__(self, config: ActorConfig) -> None:
        lower_priority(TRAINING_NICENESS)
        cv2.setNumThreads(1)
        self._config = config
        self._costs = dict(config.costs)
        side, architecture = crop_side(config.fleet), config.fleet.edge.model
        classes, device = fleet_classes(config.fleet), config.device
        if device != "cpu":
            # The golden model starts CUDA, which must find its share's service: attaching waits for that.
            config.shares.attach_job(replace(_JOB, share_milli=0)).release()
        golden = open_golden(config.fleet.golden, classes, config.fleet.edge.task, device)
        self._golden = MeteredGolden(golden, device_clock(golden.runs_on.device))
        if config.fleet.golden.gpu_s_per_window is not None:
            self._golden.try_out()
        # The first edge model that is built imports much, which must not delay a window.
        forward_operations(side, architecture=architecture)
        self._mailbox = Mailbox()
        self._clock = RunClock(time.monotonic_ns())
        self._preparations: NewestJob[PreparationJob] = NewestJob()
        predictors = Predictors(config.device, config.way)
        if config.fleet.edge.task is Task.DETECT:
            # So does the first export of a detector: without this the first window has no labels.
            serving(base_model(config.fleet, config.seed), classes, predictors)
        self._models = KnownModels(predictors)
        self._run_begun = threading.Event()
        self._evaluated: dict[StreamId, PreparedWeights] = {}
        self._auditor = Auditor(config.audit_frames, self._golden, self._now_us, self._mailbox.put)
        prices = {cost.family: price_by(cost, side, architecture) for cost in config.family_costs}
        self._work = PreparationWork(
            self._golden, self._models, self._auditor, self._costs, prices, self._now_us, self._mailbox.put
        )

    def confirm_ready(self) -> None:
        """Returns when the golden model is loaded."""

    def process_id(self) -> int:
        """Returns the pid of this process."""
        return os.getpid()

    def start_run(self, started_monotonic_ns: int) -> None:
        """Sets the start of the run."""
        self._clock = RunClock(started_monotonic_ns)
        self._run_begun.set()

    def admit_stream(self, stream: StreamId, costs: StreamCosts) -> None:
        """Sets the costs of a stream that is added to the run, and forgets an earlier one of its name."""
        self.forget_stream(stream)
        self._costs[stream] = costs

    def forget_stream(self, stream: StreamId) -> None:
        """Forgets a stream that was removed: its model, its labels, and what waits for an audit."""
        self._evaluated.pop(stream, None)
        for kept in (self._models, self._work, self._auditor):
            kept.forget_stream(stream)

    def start_preparation(self, command: BeginPreparation, serial: int) -> Resized | None:
        """Begins a window's preparation and returns its share; streams then call ``hand_in``."""
        if command.budget is not None and command.budget.gpu_s is not None:
            self._golden.try_out()  # nothing is known of its cost if no budget was set before
        handle = self._config.shares.attach_job(replace(_JOB, share_milli=command.share_milli))
        share = JobShare(handle, command.training_speed, command.share_milli, self._config.device)
        preparation = PreparationJob(command, share, [asked.stream for asked in command.streams])
        if command.round == 0:
            preparation.overdue = self._auditor.waiting_streams()
        before, number = self._newest(command.window), _number(command.window, command.round)
        if before is not None:
            # The labels of other streams stay valid, and the last ones of that round may still come.
            preparation.labels = before.labels
        resized = share.resize(serial, command.share_milli)
        self._preparations.replace_job(number, preparation)
        # Hand-ins and orders that came before wait for this, and must find the preparation in its place.
        self._preparations.mark_begun(number)
        thread = threading.Thread(
            target=self._run, args=(preparation, before), name="preparation", daemon=True
        )
        thread.start()
        return resized

    def resize_preparation(
        self, window: int, share_milli: int, serial: int, round: int = 0
    ) -> Resized | None:
        """Changes the share of a preparation; returns when it holds, None if overtaken."""
        preparation = self._preparations.wait_begun(_number(window, round))
        return _OVER if preparation is None else preparation.share.resize(serial, share_milli)

    def load_model(
        self, stream: StreamId, settings: PreparationSettings, version: ModelVersion, weights: bytes
    ) -> None:
        """Loads the model that a stream serves from now on, before its next window is prepared."""
        self._models.load_model(stream, settings, version, weights)

    def hand_in(
        self,
        window: int,
        stream: StreamId,
        settings: PreparationSettings,
        material: WindowMaterial,
        version: ModelVersion,
        weights: Callable[[], bytes],
        earlier: ModelVersion | None,
        round: int = 0,
    ) -> None:
        """Receives the material of a stream's preparation.

        Args:
            window: to prepare.
            stream: to which the material belongs.
            settings: of the stream.
            material: of the window before, or of this one.
            version: of the model that serves.
            weights: fetches that model, if ``load_model`` has not loaded it yet.
            earlier: version of the model that served when labels were taken before, if it was another one.
            round: of the preparation.
        """
        self._run_begun.wait()
        preparation = self._preparations.wait_begun(_number(window, round))
        if preparation is None:
            return
        known = self._models.newest_model(stream, settings, version, weights)
        before, self._evaluated[stream] = self._evaluated.get(stream), known
        serves = known.version == version
        # The trainer holds the exemplar memory, which fills with labelled crops from the first retraining on.
        remembered = min(MOST_EXEMPLARS[settings.task], self._work.trained_crops.get(stream, 0))
        prepared = StreamPreparation(
            settings,
            material,
            known.model,
            self._golden,
            self._golden.gpu_s,
            remembered if version > BASE_VERSION else 0,
            before.model if before is not None and serves and before.version == earlier else None,
        )
        with preparation.changed:
            preparation.streams[stream] = prepared
            preparation.changed.notify_all()

    def hand_in_failed(self, window: int, stream: StreamId, round: int = 0) -> None:
        """Continues a preparation without a stream that cannot hand anything in."""
        preparation = self._preparations.wait_begun(_number(window, round))
        if preparation is not None:
            preparation.drop_stream(stream)

    def hand_in_audit(
        self, stream: StreamId, settings: PreparationSettings, drawn: DrawnFrames | None
    ) -> None:
        """Receives frames of a stream that are to be audited; None from one that is not there."""
        if drawn is not None:
            self._auditor.add_frames(stream, settings, drawn)

    def end_preparation(self, window: int, round: int = 0) -> Resized:
        """Ends a preparation, which drops unfinished work; returns when its last batch is over."""
        preparation = self._preparations.wait_begun(_number(window, round))
        return _OVER if preparation is None else preparation.end_job()

    def newest_labels(self, window: int, stream: StreamId) -> StreamLabels | None:
        """Returns the newest labels made for a stream in a window."""
        preparation = self._newest(window)
        return None if preparation is None else preparation.labels.get(stream)

    def require_class(self, fleet: FleetConfig, name: str) -> None:
        """Refuses a fleet with one more class that the golden model or a detector does not know.

        Raises:
            UserError: says which.
        """
        open_golden(fleet.golden, fleet_classes(fleet), fleet.edge.task)
        if fleet.edge.task is Task.DETECT:
            base_model(fleet, self._config.seed)
            self._models.require_output(name)

    def _now_us(self) -> int:
        """Returns run time by the clock that ``start_run`` sets."""
        return self._clock.now_us()

    def _newest(self, window: int) -> PreparationJob | None:
        """Returns the newest preparation if it is one of this window."""
        newest = self._preparations.job
        return newest if newest is not None and newest.command.window == window else None

    def poll(self, timeout_s: float) -> list[ev.Event]:
        """Returns the events of this actor; waits up to the timeout for the first."""
        return self._mailbox.drain(timeout_s)

    def _run(self, preparation: PreparationJob, before: PreparationJob | None) -> None:
        window = preparation.command.window
        if before is not None:
            # Its last events precede those of this one.
            before.share.wait_over()
        try:
            self._work.prepare_streams(preparation)
        except JobStoppedError:
            return
        finally:
            for stream in preparation.waiting:
                if stream not in preparation.streams:
                    _LOG.warning("%s: handed in nothing for window %d", stream, window)
            preparation.share.finish_job()
            give_back_freed()
        self._mailbox.put(ev.PreparationEnded(self._clock.now_us(), window, preparation.command.round))


def _number(window: int, round: int) -> int:
    """Returns the number of a preparation, which rises from one to the next."""
    return window * _ROUNDS + round
