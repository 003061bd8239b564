"""Executor of the live world: turns commands into actor calls, and actor replies into events."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from ekya.control.protocols import Batch
from ekya.control.resizing import ShareLedger
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.shares import ShareHolder, Work, preparation_holder, retraining_holder
from ekya.core.units import US_PER_S, JobId, StreamId
from ekya.pipeline.labels import StreamLabels
from ekya.runtime.actor_errors import as_heard, in_words
from ekya.runtime.executor_layers import LateStreams
from ekya.runtime.fleet_actors import FleetActors
from ekya.runtime.mailbox import ActorPoller, RunClock, Worker
from ekya.runtime.ready import Ready
from ekya.runtime.remote_retrainings import RemoteCheckpoint, RemoteRetrainings
from ekya.runtime.retrain_inputs import MaterialToFetch, RetrainInputs
from ekya.runtime.share_changes import ShareChanges
from ekya.runtime.weight_transfer import WeightTransfer

_LOG = logging.getLogger(__name__)
_LISTEN_S = 1.0
_GATHER_S = 0.005
"""After the first event, how long to collect others: planning once is better than twice."""

_NOT_LET_GO = "it did not let go of its share in time"


class RayExecutor:
    """The executor of the live world.

    Args:
        actors: all of them, ready.
        ready: replies of the inference actors about their streams.
        first_events: emitted immediately, except that a stream that joins later is added at its time.
        keep_labels: callback for the labels of each stream as soon as the driver has them.
        clock: run time.
        ledger: share ledger, still empty.
        on_the_gpu: whether weights go from trainer to inference over CUDA IPC, and to the object store later.
    """

    def __init__(
        self,
        actors: FleetActors,
        ready: dict[StreamId, Ready],
        first_events: Sequence[ev.Event],
        clock: RunClock,
        keep_labels: Callable[[StreamId, StreamLabels], None],
        ledger: ShareLedger,
        on_the_gpu: bool = False,
    ) -> None:
        self._actors = actors
        self._ready = ready
        self._clock = clock
        self._weights = WeightTransfer(actors.streams, on_the_gpu)
        self._outbox: list[ev.Event] = [
            event for event in first_events if not isinstance(event, ev.StreamAdded)
        ]
        self._late = LateStreams([event for event in first_events if isinstance(event, ev.StreamAdded)])
        self._shares = ShareChanges(actors, ledger, clock, self._tell, self._end_worker)
        self._news = ActorPoller()
        self._set_aside: set[StreamId] = set()
        self._ended: set[Worker] = set()
        self._materials = RetrainInputs(actors, ready, keep_labels)
        self._preparing: cmd.BeginPreparation | None = None
        self._restarting: dict[Any, tuple[Worker, Any]] = {}
        self._leaving: dict[Any, Worker] = {}
        self._errands: dict[Any, str] = {}
        self._handing_in: dict[Any, tuple[int, StreamId]] = {}
        self._profiler_starts: set[Any] = set()
        # ServeModel for a job of an interrupted run is ignored: only the loop still has that job.
        self._started: set[JobId] = set()
        self._brought = RemoteRetrainings(actors.streams, self._materials, clock, self._tell)
        self._news.follow(actors.preparation)
        for stream, own in actors.streams.items():
            for role in ev.Role:
                self._news.follow(own.worker(role), (stream, role))
            self._make_known(stream)

    def wait(self, until_us: int) -> Batch:
        """Returns the next events, at ``until_us`` at the latest."""
        while not self._outbox:
            next_us = until_us if self._late.next_us is None else min(until_us, self._late.next_us)
            left_s = (next_us - self._clock.now_us()) / US_PER_S
            if left_s <= 0:
                break
            self._hear_within(min(left_s, _LISTEN_S))
        self._outbox.extend(self._late.join(max(self._clock.now_us(), 0)))
        events, self._outbox = tuple(self._outbox), []
        return Batch(max(self._clock.now_us(), 0), events)

    def material(self, stream: StreamId) -> MaterialToFetch:
        """Returns references to the inputs of a retraining that would begin now; does not block."""
        return self._materials.of(stream)

    def bring(
        self,
        command: cmd.StartRetraining,
        accuracies: Sequence[float],
        best: Callable[[], RemoteCheckpoint],
        over: bool,
    ) -> None:
        """Reports the progress of a remote retraining; see ``above.Exchange.bring``."""
        self._started.add(command.job)
        self._brought.bring(command, accuracies, best)
        if over:
            self._adopt(command.stream, command.job)

    def _hear_within(self, seconds: float) -> None:
        left_us = self._shares.left_us()
        if left_us is not None:
            seconds = min(seconds, left_us / US_PER_S)
        waiting = [*self._news.references, *self._restarting, *self._errands, *self._leaving]
        waiting += self._handing_in
        waiting += [*self._shares.references, *self._weights.references]
        done, _ = ray.wait(waiting, timeout=seconds, num_returns=1)
        if done:
            more, _ = ray.wait(waiting, timeout=_GATHER_S, num_returns=len(waiting))
            for reference in more or done:
                self._hear(reference)
        self._shares.pass_time()

    def _tell(self, event: ev.Event) -> None:
        self._outbox.extend(self._late.let_through(event))

    def execute(self, commands: Sequence[cmd.Command]) -> None:
        """Sends commands to actors without waiting; results arrive later as events."""
        for command in commands:
            self._execute(command)

    def _execute(self, command: cmd.Command) -> None:
        match command:
            case cmd.BeginPreparation():
                self._materials.begin_window()
                self._weights.begin_window()
                if self._profiler_starts:
                    self._put_off(command)
                    return
                self._preparing = command
                holder = preparation_holder(command.window)
                self._shares.begin(
                    holder, command.share_milli, command.plan_epoch, self._preparation(command)
                )
            case cmd.EndPreparation():
                self._preparing = None
                self._shares.leave(preparation_holder(command.window))
            case cmd.SetInference():
                self._shares.configure(
                    command.stream, command.config, command.share_milli, command.plan_epoch
                )
            case cmd.StartRetraining() if command.elsewhere is not None:
                reason = "there is no other server that could train it"
                now_us = max(self._clock.now_us(), 0)
                self._tell(ev.RetrainFailed(now_us, command.stream, command.job, reason))
            case cmd.StartRetraining():
                holder, begin = retraining_holder(command.stream, command.job), self._retraining(command)
                self._shares.begin(holder, command.share_milli, command.plan_epoch, begin)
            case cmd.ResizeRetraining():
                holder = retraining_holder(command.stream, command.job)
                self._shares.resize(holder, command.share_milli, command.plan_epoch)
            case cmd.StopRetraining():
                self._shares.leave(retraining_holder(command.stream, command.job))
                self._adopt(command.stream, command.job)
            case cmd.ServeModel():
                if command.job in self._started:
                    # Weights of a remote retraining are sent after the stream's trainer has received them.
                    after = self._adopt(command.stream, command.job)
                    self._errands |= self._weights.send(command.stream, command.job, after)
                    self._make_known(command.stream)
            case cmd.RollBack():
                if sent := self._weights.roll_back(command.stream):
                    _LOG.warning("%s: %s; the earlier ones serve again", command.stream, command.reason)
                    self._errands |= sent
                    self._make_known(command.stream)
            case cmd.RestartWorker():
                self._restart(command)
            case cmd.KeepServing():
                _LOG.info("%s: %s; the old ones go on serving", command.stream, command.reason)
            case cmd.SetAside():
                _LOG.error("%s is set aside: %s", command.stream, command.reason)
                self._end_stream(command.stream)

    def _put_off(self, command: cmd.BeginPreparation) -> None:
        """Ends the window's preparation unbegun; the loop asks again when the micro-profiler is back."""
        _LOG.warning("window %d has no labels until the micro-profiler is back", command.window)
        self._tell(ev.PreparationEnded(self._clock.now_us(), command.window))

    def _preparation(self, command: cmd.BeginPreparation) -> Callable[[int, int], Any]:
        """Makes every stream hand in its window material, directly from actor to actor."""

        def begin(share_milli: int, serial: int) -> Any:
            preparation = self._actors.preparation
            begun = preparation.begin.remote(replace(command, share_milli=share_milli), serial)
            for asked in command.streams:
                own = self._actors.streams[asked.stream]
                material = own.inference.material.remote(asked.stream, command.window - 1)
                settings = self._ready[asked.stream].settings
                earlier = self._weights.evaluate(asked.stream)
                weights = partial(ray.get, own.newest_weights)
                handed_in = preparation.hand_in.remote(
                    command.window, asked.stream, settings, material, own.version, weights, earlier
                )
                self._handing_in[handed_in] = (command.window, asked.stream)
            return begun

        return begin

    def _retraining(self, command: cmd.StartRetraining) -> Callable[[int, int], Any]:
        def begin(share_milli: int, serial: int) -> Any:
            self._started.add(command.job)
            own = self._actors.streams[command.stream]
            labels = self._materials.labels(command.stream)
            passed = self._weights.activations(command.stream)
            at_share = replace(command, share_milli=share_milli)
            start = own.retraining.start
            return start.remote(command.stream, at_share, own.newest_weights, labels, passed, serial)

        return begin

    def _adopt(self, stream: StreamId, job: JobId) -> list[Any]:
        """Sends the best remote weights of a job to the stream's trainer; returns the calls."""
        adopted = self._brought.adopt(stream, job)
        self._errands.update(dict.fromkeys(adopted, "adopt"))
        return adopted

    def _make_known(self, stream: StreamId) -> Any:
        """Has the micro-profiler load the newest weights while it is idle."""
        own, settings = self._actors.streams[stream], self._ready[stream].settings
        known = self._actors.preparation.know.remote(stream, settings, own.version, own.newest_weights)
        self._errands[known] = "know"
        return known

    def _restart(self, command: cmd.RestartWorker) -> None:
        worker = (command.stream, command.role)
        _LOG.warning("%s: its %s worker is started again", command.stream, command.role)
        begun = self._actors.make_again(command.stream, command.role, self._clock.started_monotonic_ns)
        actor = self._actors.streams[command.stream].worker(command.role)
        self._restarting[begun] = (worker, actor)
        self._news.follow(actor)

    def _end_stream(self, stream: StreamId) -> None:
        """Ends a stream's workers; afterwards their events are ignored, except for their end."""
        self._set_aside.add(stream)
        own = self._actors.streams[stream]
        for role in ev.Role:
            worker = own.worker(role)
            if set(self._actors.beside(stream, role)) <= self._set_aside:
                self._actors.end(worker)
            else:
                self._leaving[worker.leave.remote(stream)] = (stream, role)

    def _end_worker(self, holder: ShareHolder) -> None:
        """Kills a worker that does not release its share; it is then handled like any worker that died."""
        if holder.stream is None:
            self._actors.end(self._actors.preparation)
            return
        own = self._actors.streams[holder.stream]
        role = ev.Role(holder.work)
        self._ended.add((holder.stream, role))
        self._actors.end(own.worker(role))

    def _hear(self, reference: Any) -> None:
        if reference in self._restarting:
            self._hear_restarted(reference)
            return
        if reference in self._errands:
            self._hear_errand(reference)
            return
        if reference in self._handing_in:
            self._hear_handed_in(reference)
            return
        if self._shares.hear(reference):
            return
        if reference in self._weights.references:
            self._take_note(self._weights.on_stored(reference))
            return
        if reference in self._leaving:
            # It holds no share in either case: it has left, or its process has died.
            stream, role = self._leaving.pop(reference)
            self._shares.died(Work(role), stream)
            return
        actor = self._news.answered(reference)
        try:
            events: list[ev.Event] = ray.get(reference)
        except RayError as error:
            self._hear_death(actor, error)
            return
        for event in events:
            if isinstance(event, ev.Warned):
                self._tell(as_heard(event, max(self._clock.now_us(), 0), self._actors.fleet))
            elif actor is self._actors.preparation or getattr(event, "stream", None) not in self._set_aside:
                self._take_note(self._weights.on_event(event))
        self._news.ask(actor)

    def _take_note(self, events: Sequence[ev.Event]) -> None:
        for event in events:
            self._follow(event)
            self._tell(event)

    def _follow(self, event: ev.Event) -> None:
        """Applies the direct effects of an event, before the loop plans because of it."""
        match event:
            case ev.LabelsReady():
                self._materials.fetch_labels(event.stream, event.window)
            case ev.ProfileReady():
                ask = self._actors.preparation.passed.options(num_returns=2)
                passed, come = ask.remote(event.window, event.stream)
                self._weights.expect_activations(event.stream, come, passed)
                self._errands[come] = "passed"
            case ev.RetrainFinished() | ev.RetrainFailed():
                self._shares.leave(retraining_holder(event.stream, event.job))
            case ev.StreamLost():
                _LOG.warning("%s is lost: %s", event.stream, event.reason)
                self._shares.silence(event.stream)
            case ev.StreamEnded():
                self._shares.silence(event.stream)
            case ev.WorkerDied():
                # Only this worker failed, and it has released its share; its process goes on.
                self._news.leave((event.stream, event.role))
                self._shares.died(Work(event.role), event.stream)

    def _hear_errand(self, reference: Any) -> None:
        """Handles the end of a call; logs errors, except for a dead actor, which is reported elsewhere."""
        what = self._errands.pop(reference)
        self._count_start(reference)
        try:
            ray.get(reference)
        except RayActorError:
            return
        except RayError as error:
            _LOG.error("%s failed: %s", what, in_words(error))
            return
        self._weights.has_arrived(reference)

    def _count_start(self, reference: Any) -> None:
        """Emits ProfilerBack when all start-up calls of the new micro-profiler have ended."""
        if reference in self._profiler_starts:
            self._profiler_starts.remove(reference)
            if not self._profiler_starts:
                self._tell(ev.ProfilerBack(self._clock.now_us()))

    def _hear_handed_in(self, reference: Any) -> None:
        """Handles a stream's hand-in; after a failure the preparation goes on without the stream."""
        window, stream = self._handing_in.pop(reference)
        try:
            ray.get(reference)
        except RayError as error:
            if self._preparing is not None and self._preparing.window == window:
                _LOG.warning("%s: window %d goes without its labels: %s", stream, window, in_words(error))
                self._actors.preparation.hand_in_failed.remote(window, stream)

    def _hear_restarted(self, reference: Any) -> None:
        worker, actor = self._restarting.pop(reference)
        now_us, (stream, role) = self._clock.now_us(), worker
        try:
            ray.get(reference)
        except RayError as error:
            if isinstance(error, RayActorError):
                self._actors.has_died(actor)
            self._tell(ev.WorkerDied(now_us, stream, role, in_words(error)))
            return
        if self._news.join(actor, worker):
            self._tell(ev.WorkerBack(now_us, stream, role))
            self._actors.make_spares()
        else:
            self._tell(ev.WorkerDied(now_us, stream, role, "its process died as soon as it was back"))

    def _hear_death(self, actor: Any, error: RayError) -> None:
        """Handles the death of an actor and its workers; workers still joining are handled elsewhere."""
        now_us = self._clock.now_us()
        self._actors.has_died(actor)
        for worker in self._news.died(actor):
            stream, role = worker
            reason = _NOT_LET_GO if worker in self._ended else in_words(error)
            self._ended.discard(worker)
            self._shares.died(Work(role), stream)
            if stream not in self._set_aside:
                self._tell(ev.WorkerDied(now_us, stream, role, reason))
        if actor is self._actors.preparation:
            self._hear_preparation_died(error)

    def _hear_preparation_died(self, error: RayError) -> None:
        self._shares.died(Work.PREPARATION, None)
        _LOG.error("the micro-profiler died (%s) and is started again", in_words(error))
        self._actors.preparation = self._actors.make_preparation()
        begun = self._actors.preparation.begin_run.remote(self._clock.started_monotonic_ns)
        self._errands[begun] = "begin_run"
        self._news.follow(self._actors.preparation)
        self._profiler_starts = {begun, *(self._make_known(stream) for stream in self._actors.streams)}
        if self._preparing is not None:
            self._tell(ev.PreparationEnded(self._clock.now_us(), self._preparing.window))
            self._preparing = None
