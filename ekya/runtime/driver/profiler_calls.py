"""Calls to the micro-profiler: preparations, audits, the models that it knows, and its restart."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import ray
from ray.exceptions import RayError

from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.shares import Work, preparation_holder
from ekya.core.units import StreamId
from ekya.core.weights import LabelBudget
from ekya.runtime.actors.actor_kinds import Ready
from ekya.runtime.actors.actor_messages import RunClock, in_words
from ekya.runtime.driver.actor_processes import RemoteCalls, log_failure
from ekya.runtime.driver.fleet_actors import FleetActors
from ekya.runtime.driver.remote_retrainings import RetrainInputs
from ekya.runtime.driver.worker_lifecycle import WorkerLifecycle
from ekya.runtime.shares.share_changes import ShareChanges
from ekya.runtime.weights.weight_transfer import WeightTransfer

_LOG = logging.getLogger(__name__)


class ProfilerCalls:
    """Has the micro-profiler prepare windows. No method blocks.

    Args:
        actors: of the run.
        ready: settings of the streams that serve.
        workers: of the streams.
        clock: run time.
        calls: calls in flight.
        shares: of all jobs.
        inputs: of retrainings.
        weights: of all streams.
        emit: callback for events.
    """

    def __init__(
        self,
        actors: FleetActors,
        ready: Mapping[StreamId, Ready],
        workers: WorkerLifecycle,
        clock: RunClock,
        calls: RemoteCalls,
        shares: ShareChanges,
        inputs: RetrainInputs,
        weights: WeightTransfer,
        emit: Callable[[ev.Event], None],
    ) -> None:
        self._actors, self._ready, self._workers = actors, ready, workers
        self._clock, self._calls = clock, calls
        self._shares, self._inputs, self._weights = shares, inputs, weights
        self._emit = emit
        self._preparing: cmd.BeginPreparation | None = None
        # Start-up calls of the micro-profiler that are not over.
        self._starts: set[Any] = set()

    def end_preparation(self, command: cmd.EndPreparation) -> None:
        """Ends a preparation, which drops unfinished work."""
        self._preparing = None
        self._shares.end_job(preparation_holder(command.window, command.round))

    def is_preparing(self, stream: StreamId) -> bool:
        """Returns whether a preparation of a stream is in progress."""
        asked = () if self._preparing is None else self._preparing.streams
        return any(one.stream == stream for one in asked)

    def start_preparation(self, command: cmd.BeginPreparation) -> None:
        """Begins a preparation as soon as there is a share for it."""
        if command.round == 0:
            self._inputs.begin_window()
        if self._starts:
            # The loop asks again when the micro-profiler is back.
            _LOG.warning("window %d has no labels until the micro-profiler is back", command.window)
            self._emit(ev.PreparationEnded(self._now_us(), command.window, command.round))
            return
        self._preparing = command
        holder, begin = preparation_holder(command.window, command.round), partial(self._prepare, command)
        self._shares.start_job(holder, command.share_milli, command.plan_epoch, begin)

    def _prepare(self, command: cmd.BeginPreparation, share_milli: int, serial: int) -> Any:
        """Begins a preparation; every stream hands in its window material, directly from actor to actor."""
        preparation = self._actors.preparation
        begun = preparation.start_preparation.remote(replace(command, share_milli=share_milli), serial)
        for asked in command.streams:
            if asked.stream not in self._ready:  # removed while the preparation waited for its share
                preparation.hand_in_failed.remote(command.window, asked.stream, round=command.round)
                continue
            own = self._actors.streams[asked.stream]
            material = own.inference.window_material.remote(asked.stream, command.window, asked.since_us)
            settings = self._ready[asked.stream].settings.with_label_budget(command.budget)
            earlier = self._weights.record_evaluation(asked.stream)
            weights = partial(ray.get, own.newest_weights)
            handed_in = preparation.hand_in.remote(
                command.window,
                asked.stream,
                settings,
                material,
                own.version,
                weights,
                earlier,
                round=command.round,
            )
            self._calls.add_call(handed_in, partial(self._handed_in, command, asked.stream))
        if command.round == 0 and self._actors.audits:
            self._hand_in_audits(command.budget)
        return begun

    def _hand_in_audits(self, budget: LabelBudget | None) -> None:
        """Has every stream hand in the frames drawn for its audit, whether it is prepared or not."""
        for stream, own in self._actors.streams.items():
            # A stream that is just being added is not ready yet.
            if stream in self._ready and stream not in self._workers.set_aside:
                drawn = own.inference.drain_audit_frames.remote(stream)
                settings = self._ready[stream].settings.with_label_budget(budget)
                handed_in = self._actors.preparation.hand_in_audit.remote(stream, settings, drawn)
                self._calls.add_call(handed_in, partial(log_failure, "hand_in_audit"))

    def _handed_in(
        self, command: cmd.BeginPreparation, stream: StreamId, _value: None, error: RayError | None
    ) -> None:
        """Handles a stream's hand-in; after a failure the preparation goes on without the stream."""
        if error is not None and self._preparing is command:
            _LOG.warning("%s: window %d has none of its labels: %s", stream, command.window, in_words(error))
            self._actors.preparation.hand_in_failed.remote(command.window, stream, round=command.round)

    def load_newest_model(self, stream: StreamId) -> Any:
        """Has the micro-profiler load the newest weights while it is idle."""
        own, settings = self._actors.streams[stream], self._ready[stream].settings
        known = self._actors.preparation.load_model.remote(stream, settings, own.version, own.newest_weights)
        self._calls.add_call(known, partial(log_failure, "load_model"))
        return known

    def follow_loading(self, begun: Any) -> None:
        """Has a new micro-profiler load the models that serve, and tells the loop when it has.

        Args:
            begun: call to it that returns once it has started.
        """
        self._emit(ev.ProfilerDown(self._now_us()))
        self._starts = {begun, *(self.load_newest_model(stream) for stream in self._ready)}
        for start in self._starts:
            self._calls.add_call(start, partial(self._started, start))

    def restart_profiler(self, error: RayError) -> None:
        """Starts the micro-profiler again after its death, with the models that serve."""
        self._shares.release_worker(Work.PREPARATION, None)
        _LOG.error("the micro-profiler died (%s) and is started again", in_words(error))
        self._actors.preparation = self._actors.make_preparation()
        begun = self._actors.preparation.start_run.remote(self._clock.started_monotonic_ns)
        self._workers.poll_actor(self._actors.preparation)
        self.follow_loading(begun)
        if self._preparing is not None:
            ended = self._preparing
            self._emit(ev.PreparationEnded(self._now_us(), ended.window, ended.round))
            self._preparing = None

    def _started(self, start: Any, value: None, error: RayError | None) -> None:
        """Emits ProfilerBack when all start-up calls of the micro-profiler have ended."""
        log_failure("the start of the micro-profiler", value, error)
        if start in self._starts:
            self._starts.remove(start)
            if not self._starts:
                self._emit(ev.ProfilerBack(self._now_us()))

    def _now_us(self) -> int:
        """Returns run time, 0 before the run begins."""
        return max(self._clock.now_us(), 0)
