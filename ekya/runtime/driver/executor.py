"""Executor of the live world: turns commands into actor calls, and actor replies into events."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import ray
from ray.exceptions import RayError

from ekya.control.protocols import Batch
from ekya.control.share_ledger import ShareLedger
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.shares import retraining_holder
from ekya.core.units import US_PER_S, JobId, ModelVersion, StreamId
from ekya.pipeline.labels import StreamLabels
from ekya.runtime.actors.actor_kinds import Ready
from ekya.runtime.actors.actor_messages import RunClock, received_warning
from ekya.runtime.driver.actor_processes import RemoteCalls, log_failure
from ekya.runtime.driver.fleet_actors import FleetActors
from ekya.runtime.driver.profiler_calls import ProfilerCalls
from ekya.runtime.driver.remote_retrainings import (
    RemoteRetrainings,
    RetrainInputs,
)
from ekya.runtime.driver.stream_changes import LateStreams, StreamChanges
from ekya.runtime.driver.worker_lifecycle import WorkerLifecycle
from ekya.runtime.shares.share_changes import ShareChanges
from ekya.runtime.weights.weight_transfer import WeightTransfer

_LOG = logging.getLogger(__name__)

_STOP_CHECK_S = 0.25
"""Interval between two checks for an early end of the run."""

_JOBS = 1000
"""Newest retrainings whose weights may still be asked for."""


class StoppedEarlyError(Exception):
    """The run was ended before its last window has closed."""


class RayExecutor:
    """The executor of the live world.

    Args:
        actors: all of them, ready.
        ready: replies of the inference actors about their streams.
        first_events: emitted immediately, except that a stream that joins later is added at its time.
        keep_labels: callback for the labels of each stream as soon as the driver has them.
        clock: run time.
        ledger: share ledger, still empty.
        stop: ends the run early when any thread sets it.
        alive: called several times a second.
        kept_weights: returns the weights of a version that has served a stream; None if they are gone.
        may_go_on: whether the loop may take another step; called as often. While it may not, events wait,
            and what the actors do goes on.

    Attributes:
        busy_s: time that the loop has spent between two waits.
        remote: retrainings on other servers.
        changes: of the streams; for the thread of the loop, as in ``post_call``.
    """

    def __init__(
        self,
        actors: FleetActors,
        ready: dict[StreamId, Ready],
        first_events: Sequence[ev.Event],
        clock: RunClock,
        keep_labels: Callable[[StreamId, StreamLabels], None],
        ledger: ShareLedger,
        stop: threading.Event,
        kept_weights: Callable[[StreamId, ModelVersion], bytes | None] = lambda stream, version: None,
        alive: Callable[[], None] = lambda: None,
        may_go_on: Callable[[], bool] = lambda: True,
    ) -> None:
        self.busy_s = 0.0
        self._returned_s: float | None = None
        self._actors = actors
        self._ready = ready
        self._clock = clock
        self._stop, self._alive, self._may_go_on = stop, alive, may_go_on
        self._late = LateStreams([event for event in first_events if isinstance(event, ev.StreamAdded)])
        self._outbox: list[ev.Event] = [
            event for event in first_events if not isinstance(event, ev.StreamAdded)
        ]
        self._calls = RemoteCalls()
        self._weights = WeightTransfer(actors.streams, self._calls)
        self._kept_weights = kept_weights
        self._shares = ShareChanges(actors, ledger, clock, self._calls, self.emit)
        self._workers = WorkerLifecycle(
            actors,
            clock,
            self._calls,
            self._shares,
            self.emit,
            self._receive,
            self._worker_ended,
            self._profiler_died,
        )
        self._inputs = RetrainInputs(actors, ready, keep_labels)
        self._profiler = ProfilerCalls(
            actors,
            ready,
            self._workers,
            clock,
            self._calls,
            self._shares,
            self._inputs,
            self._weights,
            self.emit,
        )
        self._started: set[JobId] = set()
        self.remote = RemoteRetrainings(actors.streams, self._inputs, self._calls, self._now_us, self.emit)
        self._posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        # Calls that wait until the events emitted so far are in the journal.
        self._unwritten: list[Callable[[], None]] = []
        self.changes = StreamChanges(
            actors,
            ready,
            self._weights,
            self._late,
            clock,
            self._calls,
            self._workers,
            self._shares,
            self._profiler,
            self.emit,
        )
        self._workers.poll_actor(actors.preparation)
        for stream in actors.streams:
            self._workers.poll_stream(stream)

    def load_profiler(self) -> None:
        """Has the micro-profiler load the models that serve; nothing is labelled until it has."""
        self._profiler.follow_loading(self._actors.preparation.confirm_ready.remote())

    def post_call(self, call: Callable[[], None]) -> None:
        """Has the thread of the loop make a call within a quarter of a second. Any thread may post."""
        self._posted.put(call)

    def call_when_written(self, call: Callable[[], None]) -> None:
        """Makes a call once all events emitted so far are in the journal; for the thread of the loop."""
        if self._outbox:
            self._unwritten.append(call)
        else:
            call()

    def wait(self, until_us: int) -> Batch:
        """Returns the next events, at ``until_us`` at the latest unless the loop may not go on then.

        Raises:
            StoppedEarlyError: the run is to end.
        """
        if self._returned_s is not None:
            self.busy_s += time.monotonic() - self._returned_s
        self._alive()
        # The loop has journalled the last batch before it waits again, so these are on disk by now.
        written, self._unwritten = self._unwritten, []
        for call in written:
            call()
        self._call_posted()
        self._workers.renew_spares()
        while not self._stop.is_set():
            next_us = until_us if self._late.next_us is None else min(until_us, self._late.next_us)
            left_s = (next_us - self._clock.now_us()) / US_PER_S
            if not self._may_go_on():
                left_s = _STOP_CHECK_S
            elif self._outbox or left_s <= 0:
                break
            self._calls.wait_replies(min(left_s, self._shares.left_s(), _STOP_CHECK_S))
            self._shares.pass_time(self._workers.end_overdue)
            self._workers.end_hung()
            self._call_posted()
            self._alive()
        self._returned_s = time.monotonic()
        if self._stop.is_set():
            raise StoppedEarlyError
        now_us = self._now_us()
        events = (*self._outbox, *self._late.join_due(now_us))
        self._outbox = []
        return Batch(now_us, events)

    def _call_posted(self) -> None:
        while not self._posted.empty():
            self._posted.get()()

    def execute_commands(self, commands: Sequence[cmd.Command]) -> None:
        """Sends commands to actors without waiting; results arrive later as events.

        The loop may learn of the removal of a stream together with what it answers by a command.
        """
        for command in commands:
            stream = getattr(command, "stream", None)
            if stream is None or stream in self._actors.streams:
                self._execute(command)

    def _execute(self, command: cmd.Command) -> None:
        match command:
            case cmd.BeginPreparation():
                self._profiler.start_preparation(command)
            case cmd.EndPreparation():
                self._profiler.end_preparation(command)
            case cmd.SetInference():
                self._shares.set_inference(
                    command.stream, command.config, command.share_milli, command.plan_epoch
                )
            case cmd.SetAreas():
                self._actors.change_areas(command.stream, command.areas)
                send = partial(self._actors.send_areas, command.stream, command.areas)
                self._workers.call_when_joined(command.stream, send)
            case cmd.StartRetraining() if command.elsewhere is not None:
                reason = "there is no other server that could train it"
                self.emit(ev.RetrainFailed(self._now_us(), command.stream, command.job, reason))
            case cmd.StartRetraining():
                holder = retraining_holder(command.stream, command.job)
                begin = partial(self._retrain, command)
                self._shares.start_job(holder, command.share_milli, command.plan_epoch, begin)
            case cmd.ResizeRetraining():
                holder = retraining_holder(command.stream, command.job)
                self._shares.resize_job(holder, command.share_milli, command.plan_epoch)
            case cmd.StopRetraining():
                self._shares.end_job(retraining_holder(command.stream, command.job))
                self.remote.send_best_weights(command.stream, command.job)
            case cmd.ServeModel() | cmd.RollBack():
                self._workers.call_when_joined(command.stream, partial(self._change_model, command))
            case cmd.RestartWorker():
                if not self.changes.is_leaving(command.stream):
                    self._workers.restart_worker(command.stream, command.role)
            case cmd.KeepServing():
                _LOG.info("%s: %s; the old ones go on serving", command.stream, command.reason)
            case cmd.StartAgain():
                _LOG.warning("%s, so the service starts again", command.reason)
            case cmd.SetAside():
                _LOG.error("%s is set aside: %s", command.stream, command.reason)
                self._workers.end_stream(command.stream)

    # Jobs

    def _change_model(self, command: cmd.ServeModel | cmd.RollBack) -> None:
        """Sends weights to a stream's inference, which is there."""
        match command:
            case cmd.ServeModel():
                self._serve(command)
            case cmd.RollBack():
                if self._roll_back(command):
                    _LOG.warning("%s: %s; the earlier ones serve again", command.stream, command.reason)
                    self._profiler.load_newest_model(command.stream)

    def _roll_back(self, command: cmd.RollBack) -> bool:
        """Sends earlier weights to a stream's inference; False if there are none."""
        if command.version is None:
            return self._weights.roll_back(command.stream)
        weights = self._kept_weights(command.stream, command.version)
        if weights is None:
            _LOG.warning("%s: model %d is not kept any more", command.stream, command.version)
        else:
            self._weights.serve_again(command.stream, ray.put(weights), command.version)
        return weights is not None

    def _retrain(self, command: cmd.StartRetraining, share_milli: int, serial: int) -> Any:
        self._started.add(command.job)
        self._started.discard(JobId(command.job - _JOBS))
        moved = self._workers.move_retraining(command.stream)
        own = self._actors.streams[command.stream]
        labels = self._inputs.labels(command.stream)
        at_share = replace(command, share_milli=share_milli)
        return own.retraining.start_retraining.remote(
            command.stream, at_share, own.newest_weights, labels, serial, moved
        )

    def _serve(self, command: cmd.ServeModel) -> None:
        """Sends weights from a trainer to inference, after those trained elsewhere have come there."""
        stream, job = command.stream, command.job
        if job not in self._started and not self.remote.has_job(job):
            return  # a job of an interrupted run: only the loop still has it
        self._weights.send_checkpoint(stream, job, self.remote.send_best_weights(stream, job))
        self._profiler.load_newest_model(stream)

    # Events

    def _now_us(self) -> int:
        """Returns run time, 0 before the run begins."""
        return max(self._clock.now_us(), 0)

    def forget_pictures(self, stream: StreamId) -> None:
        """Has a stream's trainer forget what it keeps of earlier windows, and of its retrainings."""
        forgotten = self._actors.streams[stream].retraining.forget_pictures.remote(stream)
        self._calls.add_call(forgotten, partial(log_failure, "forget_pictures"))

    def resize_pool(self, capacity_milli: int) -> None:
        """Changes the capacity of the GPUs, where it is one pool; plans follow by an event."""
        self._shares.resize_pool(capacity_milli)

    def emit(self, event: ev.Event) -> None:
        """Adds an event to the next batch. Called by the thread of the loop."""
        self._outbox.extend(self._late.let_through(event))

    def _worker_ended(self, stream: StreamId, role: ev.Role) -> None:
        self.changes.note_worker_end(stream, role)

    def _profiler_died(self, error: RayError) -> None:
        self._profiler.restart_profiler(error)

    def _receive(self, event: ev.Event) -> None:
        """Takes an event of an actor."""
        if isinstance(event, ev.Warned):
            self.emit(received_warning(event, self._now_us(), self._actors.fleet))
        elif self._weights.note_swap(event):
            self._apply(event)

    def _apply(self, event: ev.Event) -> None:
        """Applies the direct effects of an event, before the loop plans because of it, and emits it."""
        match event:
            case ev.LabelsReady():
                self._inputs.fetch_labels(event.stream, event.window)
            case ev.RetrainFinished() | ev.RetrainFailed():
                self._shares.end_job(retraining_holder(event.stream, event.job))
            case ev.StreamLost() | ev.StreamEnded():
                self._shares.release_inference(event.stream)
            case ev.WorkerDied():
                self._workers.forget_worker(event.stream, event.role)
        if isinstance(event, ev.StreamLost):
            _LOG.warning("%s is lost: %s", event.stream, event.reason)
        self.emit(event)
