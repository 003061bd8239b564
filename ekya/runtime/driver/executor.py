"""Executor of the live world: turns commands into actor calls, and actor replies into events."""

import logging
import queue
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from ekya.control.protocols import Batch
from ekya.control.share_ledger import ShareLedger
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.shares import ShareHolder, Work, retraining_holder
from ekya.core.units import US_PER_S, JobId, ModelVersion, StreamId
from ekya.pipeline.labels import StreamLabels
from ekya.runtime.actors.actor_errors import in_words, received
from ekya.runtime.actors.actor_kinds import Ready
from ekya.runtime.actors.mailbox import RunClock
from ekya.runtime.driver.actor_processes import EVENTS
from ekya.runtime.driver.fleet_actors import FleetActors
from ekya.runtime.driver.hung_actors import HungActors
from ekya.runtime.driver.late_streams import LateStreams
from ekya.runtime.driver.profiler_calls import ProfilerCalls
from ekya.runtime.driver.remote_calls import RemoteCalls, log_failure
from ekya.runtime.driver.remote_retrainings import (
    RemoteRetrainings,
    RetrainInputs,
)
from ekya.runtime.driver.stream_changes import StreamChanges
from ekya.runtime.shares.share_changes import ShareChanges
from ekya.runtime.weights.weight_transfer import WeightTransfer
from ekya.runtime.weights.zoo_keeper import ZooKeeper

_LOG = logging.getLogger(__name__)

_POLL_S = 1.0
"""Longest wait of an actor for an event to return."""

_STOP_CHECK_S = 0.25
"""Interval between two checks for an early end of the run."""

_SPARES_S = 5.0
"""Interval between two looks at the spare processes."""

_OVERDUE = "it did not release its share in time"

_JOBS = 1000
"""Newest retrainings whose weights may still be asked for."""

Worker = tuple[StreamId, ev.Role]


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
        zoo: keeps retrained models, if any are kept.
        alive: called several times a second.
        kept_weights: returns the weights of a version that has served a stream; None if they are gone.
        may_go_on: whether the loop may take another step; called as often. While it may not, events wait,
            and what the actors do goes on.

    Attributes:
        busy_s: time that the loop has spent between two waits.
        remote: retrainings on other servers.
        changes: of the streams; for the thread of the loop, as in ``post``.
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
        zoo: ZooKeeper | None = None,
        kept_weights: Callable[[StreamId, ModelVersion], bytes | None] = lambda stream, version: None,
        alive: Callable[[], None] = lambda: None,
        may_go_on: Callable[[], bool] = lambda: True,
    ) -> None:
        self.busy_s = 0.0
        self._returned_s: float | None = None
        self._spares_due_s = 0.0
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
        self._zoo = zoo
        self._kept_weights = kept_weights
        self._shares = ShareChanges(actors, ledger, clock, self._calls, self._emit, self._end_worker)
        # Polled actors and the workers in them; the micro-profiler has none.
        self._polled: dict[Any, set[Worker]] = {}
        self._hung = HungActors()
        self._set_aside: set[StreamId] = set()
        self._overdue: set[Worker] = set()
        # Calls in flight by which workers enter or leave a process.
        self._moving: Counter[Worker] = Counter()
        # Weights for inferences that are joining, which would not receive them.
        self._postponed: defaultdict[StreamId, list[cmd.Command]] = defaultdict(list)
        self._inputs = RetrainInputs(actors, ready, keep_labels)
        self._profiler = ProfilerCalls(
            actors,
            ready,
            self._set_aside,
            clock,
            self._calls,
            self._shares,
            self._inputs,
            self._weights,
            zoo,
            self._emit,
            self._follow,
        )
        self._started: set[JobId] = set()
        self.remote = RemoteRetrainings(actors.streams, self._inputs, self._calls, self._now_us, self._emit)
        self._posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        # Calls that wait until the events emitted so far are in the journal.
        self._unwritten: list[Callable[[], None]] = []
        self.changes = StreamChanges(
            actors, ready, self._weights, self._late, clock, self._calls, self, self._profiler.make_known
        )
        self._follow(actors.preparation)
        for stream in actors.streams:
            self.follow(stream)
            self._profiler.make_known(stream)

    def post(self, call: Callable[[], None]) -> None:
        """Has the thread of the loop make a call within a quarter of a second. Any thread may post."""
        self._posted.put(call)

    def when_written(self, call: Callable[[], None]) -> None:
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
        written, self._unwritten = self._unwritten, []
        for call in written:
            call()
        self._call_posted()
        self._make_spares()
        while not self._stop.is_set():
            next_us = until_us if self._late.next_us is None else min(until_us, self._late.next_us)
            left_s = (next_us - self._clock.now_us()) / US_PER_S
            if not self._may_go_on():
                left_s = _STOP_CHECK_S
            elif self._outbox or left_s <= 0:
                break
            self._calls.wait(min(left_s, self._shares.left_s(), _STOP_CHECK_S))
            self._shares.pass_time()
            self._end_hung()
            self._call_posted()
            self._alive()
        self._returned_s = time.monotonic()
        if self._stop.is_set():
            raise StoppedEarlyError
        now_us = self._now_us()
        events = (*self._outbox, *self._late.join(now_us))
        self._outbox = []
        return Batch(now_us, events)

    def _call_posted(self) -> None:
        while not self._posted.empty():
            self._posted.get()()

    def execute(self, commands: Sequence[cmd.Command]) -> None:
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
                self._profiler.begin(command)
            case cmd.SkipPreparation():
                _LOG.info("%s: %s", ", ".join(command.streams), command.reason)
            case cmd.EndPreparation():
                self._profiler.end(command)
            case cmd.SetInference():
                self._shares.configure(
                    command.stream, command.config, command.share_milli, command.plan_epoch
                )
            case cmd.StartRetraining() if command.elsewhere is not None:
                reason = "there is no other server that could train it"
                self._emit(ev.RetrainFailed(self._now_us(), command.stream, command.job, reason))
            case cmd.StartRetraining():
                holder = retraining_holder(command.stream, command.job)
                begin = partial(self._retrain, command)
                self._shares.begin(holder, command.share_milli, command.plan_epoch, begin)
            case cmd.ResizeRetraining():
                holder = retraining_holder(command.stream, command.job)
                self._shares.resize(holder, command.share_milli, command.plan_epoch)
            case cmd.StopRetraining():
                self._shares.leave(retraining_holder(command.stream, command.job))
                self.remote.send(command.stream, command.job)
            case cmd.ServeModel() | cmd.RollBack() | cmd.AdoptModel() if self._joins(command.stream):
                self._postponed[command.stream].append(command)
            case cmd.ServeModel():
                self._serve(command)
            case cmd.RollBack():
                if self._roll_back(command):
                    _LOG.warning("%s: %s; the earlier ones serve again", command.stream, command.reason)
                    self._profiler.make_known(command.stream)
            case cmd.AdoptModel():
                if self._adopt(command):
                    _LOG.info("%s adopts a model of %s: %s", command.stream, command.of, command.reason)
                    self._profiler.make_known(command.stream)
                else:
                    self._emit(ev.AdoptionFailed(self._now_us(), command.stream))
            case cmd.KeepModel():
                if self._zoo is not None:
                    self._zoo.keep(command)
            case cmd.RestartWorker():
                self._restart(command.stream, command.role)
            case cmd.KeepServing():
                _LOG.info("%s: %s; the old ones go on serving", command.stream, command.reason)
            case cmd.StartAgain():
                _LOG.warning("%s, so the service starts again", command.reason)
            case cmd.SetAside():
                _LOG.error("%s is set aside: %s", command.stream, command.reason)
                self._end_stream(command.stream)

    # Jobs

    def _joins(self, stream: StreamId) -> bool:
        """Returns whether a stream's inference is joining its process, which cannot take weights yet."""
        return self._moving[stream, ev.Role.INFERENCE] > 0 and stream not in self._set_aside

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

    def _adopt(self, command: cmd.AdoptModel) -> bool:
        """Sends offered weights to a stream's inference; False if they are gone."""
        stream, of, version = command.stream, command.of, command.version
        accuracy = command.validation_accuracy
        if command.kept is None or self._zoo is None:
            return self._weights.adopt_lent(stream, of, version, accuracy)
        weights = self._zoo.take(command.kept)
        if weights is None:
            self._weights.forget_profiled(stream)
            return False
        adopted = self._weights.adopt(stream, ray.put(weights), of, version, accuracy, command.kept)
        self._zoo.serves(command.kept, stream, adopted, weights)
        return True

    def _retrain(self, command: cmd.StartRetraining, share_milli: int, serial: int) -> Any:
        self._started.add(command.job)
        self._started.discard(JobId(command.job - _JOBS))
        own = self._actors.streams[command.stream]
        labels = self._inputs.labels(command.stream)
        activations = self._weights.activations(command.stream)
        at_share = replace(command, share_milli=share_milli)
        return own.retraining.start.remote(
            command.stream, at_share, own.newest_weights, labels, activations, serial
        )

    def _serve(self, command: cmd.ServeModel) -> None:
        """Sends weights from a trainer to inference, after those trained elsewhere have come there."""
        stream, job = command.stream, command.job
        if job not in self._started and not self.remote.has(job):
            return  # a job of an interrupted run: only the loop still has it
        self._weights.send(stream, job, self.remote.send(stream, job))
        self._profiler.make_known(stream)

    # Workers

    def _restart(self, stream: StreamId, role: ev.Role) -> None:
        if self.changes.is_leaving(stream):
            return
        self._set_aside.discard(stream)
        _LOG.warning("%s: its %s worker is started again", stream, role)
        begun = self._actors.make_again(stream, role, self._clock.started_monotonic_ns)
        actor = self._actors.streams[stream].worker(role)
        self._moving[stream, role] += 1
        self._calls.add(begun, partial(self._restarted, stream, role, actor))
        self._follow(actor)

    def _restarted(
        self, stream: StreamId, role: ev.Role, actor: Any, _value: None, error: RayError | None
    ) -> None:
        now_us = self._clock.now_us()
        self._moving[stream, role] -= 1
        if isinstance(error, RayActorError):
            self._actors.has_died(actor)
        if stream in self._set_aside:
            if error is None:
                self._have_leave(actor, stream, role)
            self._ended(stream, role)
        elif error is None and actor in self._polled:
            self._polled[actor].add((stream, role))
            if self._actors.streams[stream].paused:
                # Not before: calls may overtake each other in a process.
                self._actors.pause(stream, True)
            self._emit(ev.WorkerBack(now_us, stream, role))
            if role is ev.Role.INFERENCE:
                for command in self._postponed.pop(stream, []):
                    self._execute(command)
        else:
            reason = "its process died as soon as it was back" if error is None else in_words(error)
            self._shares.died(Work(role), stream)  # of what was sent to it meanwhile
            self._emit(ev.WorkerDied(now_us, stream, role, reason))

    def follow(self, stream: StreamId) -> None:
        """Receives the events of a stream's workers from now on."""
        self._set_aside.discard(stream)
        for role in ev.Role:
            self._follow(self._actors.streams[stream].worker(role), (stream, role))

    def followed(self, stream: StreamId) -> frozenset[ev.Role]:
        """Returns the workers of a stream that have not ended."""
        workers = (*(worker for workers in self._polled.values() for worker in workers), *+self._moving)
        return frozenset(role for one, role in workers if one == stream)

    def prepares(self, stream: StreamId) -> bool:
        """Returns whether labels and profiles of a stream may still come."""
        return self._profiler.prepares(stream)

    def release(self, stream: StreamId) -> None:
        """Releases the share of a stream's inference."""
        self._shares.release_inference(stream)

    def end(self, stream: StreamId) -> None:
        """Ends the workers of a stream; each is reported to ``changes`` when it has ended."""
        self._end_stream(stream)

    def _end_stream(self, stream: StreamId) -> None:
        """Ends a stream's workers; afterwards their events are ignored, except for their end."""
        self._set_aside.add(stream)
        self._postponed.pop(stream, None)
        own = self._actors.streams[stream]
        for role in ev.Role:
            worker = own.worker(role)
            if set(self._actors.beside(stream, role)) <= self._set_aside:
                self._actors.end(worker)
            else:
                self._have_leave(worker, stream, role)

    def _have_leave(self, actor: Any, stream: StreamId, role: ev.Role) -> None:
        """Has a worker leave a process that goes on."""
        self._moving[stream, role] += 1
        self._calls.add(actor.leave.remote(stream), partial(self._left, stream, role))

    def _left(self, stream: StreamId, role: ev.Role, _value: None, _error: RayError | None) -> None:
        if stream in self._set_aside:  # or it was started again meanwhile
            # It holds no share in either case: it has left, or its process has died.
            self._shares.died(Work(role), stream)
            for workers in self._polled.values():
                workers.discard((stream, role))
        self._moving[stream, role] -= 1
        self._ended(stream, role)

    def _ended(self, stream: StreamId, role: ev.Role) -> None:
        """Reports the end of a worker, unless a reply to it is still to come."""
        if not self._moving[stream, role]:
            del self._moving[stream, role]
            self.changes.ended(stream, role)

    def _end_worker(self, holder: ShareHolder) -> None:
        """Kills a worker that does not release its share; it is then handled like any worker that died."""
        if holder.stream is None:
            self._actors.end(self._actors.preparation)
            return
        role = ev.Role(holder.work)
        self._overdue.add((holder.stream, role))
        self._actors.end(self._actors.streams[holder.stream].worker(role))

    def _died(self, actor: Any, error: RayError) -> None:
        """Handles the death of an actor and its workers; workers still joining are handled elsewhere."""
        self._actors.has_died(actor)
        self._hung.forget(actor)
        for worker in sorted(self._polled.pop(actor)):
            stream, role = worker
            reason = _OVERDUE if worker in self._overdue else in_words(error)
            self._overdue.discard(worker)
            if stream not in self._set_aside and self._has_begun_again(worker):
                continue
            self._shares.died(Work(role), stream)
            self._ended(stream, role)
            if stream not in self._set_aside:
                self._emit(ev.WorkerDied(self._clock.now_us(), stream, role, reason))
        if actor is self._actors.preparation:
            self._profiler.restart(error)

    def _make_spares(self) -> None:
        """Replaces spare processes that were taken or have died, but not while a worker starts again."""
        now_s = time.monotonic()
        if now_s >= self._spares_due_s and not any(self._moving.values()):
            self._spares_due_s = now_s + _SPARES_S
            self._actors.make_spares()

    def _end_hung(self) -> None:
        """Kills processes that hang; they are then handled like any that died."""
        for actor in self._hung.take(self._clock.now_us()):
            workers = [f"{role} of {stream}" for stream, role in sorted(self._polled[actor])]
            _LOG.warning("the process of %s hangs and is killed", ", ".join(workers) or "the micro-profiler")
            self._actors.end(actor)

    def _has_begun_again(self, worker: Worker) -> bool:
        """Returns whether a worker whose old process has died now is in another one, or is joining it."""
        return self._moving[worker] > 0 or any(worker in workers for workers in self._polled.values())

    # Events

    def _now_us(self) -> int:
        """Returns run time, 0 before the run begins."""
        return max(self._clock.now_us(), 0)

    def forget_pictures(self, stream: StreamId) -> None:
        """Has a stream's trainer forget what it keeps of earlier windows, and of its retrainings."""
        forgotten = self._actors.streams[stream].retraining.forget.remote(stream)
        self._calls.add(forgotten, partial(log_failure, "forget"))

    def resize_pool(self, capacity_milli: int) -> None:
        """Changes the capacity of the GPUs, where it is one pool; plans follow by an event."""
        self._shares.resize_pool(capacity_milli)

    def emit(self, event: ev.Event) -> None:
        """Adds an event to the next batch. Called by the thread of the loop."""
        self._emit(event)

    def _emit(self, event: ev.Event) -> None:
        self._outbox.extend(self._late.let_through(event))

    def _follow(self, actor: Any, *workers: Worker) -> None:
        """Polls an actor from now on, if it is not polled yet, and adds workers to it."""
        if actor not in self._polled:
            self._polled[actor] = set()
            self._hung.loads(actor, self._now_us())
            self._poll(actor)
        self._polled[actor].update(workers)

    def _poll(self, actor: Any) -> None:
        poll = actor.poll.options(concurrency_group=EVENTS)
        self._calls.add(poll.remote(_POLL_S), partial(self._received, actor))

    def _received(self, actor: Any, events: Sequence[ev.Event], error: RayError | None) -> None:
        if error is not None:
            self._died(actor, error)
            return
        self._hung.replied(actor, self._clock.now_us())
        for event in events:
            is_set_aside = getattr(event, "stream", None) in self._set_aside
            if isinstance(event, ev.Warned):
                self._emit(received(event, self._now_us(), self._actors.fleet))
            elif is_set_aside and actor is not self._actors.preparation:
                continue
            elif self._weights.on_event(event):
                self._apply(event)
        self._poll(actor)

    def _apply(self, event: ev.Event) -> None:
        """Applies the direct effects of an event, before the loop plans because of it, and emits it."""
        match event:
            case ev.LabelsReady():
                self._inputs.fetch_labels(event.stream, event.window)
            case ev.ProfileReady():
                if event.pooled is not None and event.pooled.learns:
                    self._inputs.use_pooled_labels(event.stream, event.window)
                ask = self._actors.preparation.passed.options(num_returns=2)
                self._weights.expect_activations(event.stream, *ask.remote(event.window, event.stream))
            case ev.RetrainFinished() | ev.RetrainFailed():
                self._shares.leave(retraining_holder(event.stream, event.job))
            case ev.StreamLost() | ev.StreamEnded():
                self._shares.release_inference(event.stream)
            case ev.WorkerDied():
                # Only this worker failed, and it has released its share; its process goes on.
                for workers in self._polled.values():
                    workers.discard((event.stream, event.role))
                self._shares.died(Work(event.role), event.stream)
        if isinstance(event, ev.StreamLost):
            _LOG.warning("%s is lost: %s", event.stream, event.reason)
        self._emit(event)
