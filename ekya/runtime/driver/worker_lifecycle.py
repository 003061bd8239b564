"""Lifecycle of the workers: they join processes, are polled, hang or die, are started again, and leave."""

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ray.exceptions import RayActorError, RayError

from ekya.core import events as ev
from ekya.core.shares import ShareHolder, Work
from ekya.core.units import US_PER_S, StreamId
from ekya.runtime.actors.actor_messages import RunClock, in_words
from ekya.runtime.driver.actor_processes import EVENTS, RemoteCalls
from ekya.runtime.driver.fleet_actors import FleetActors
from ekya.runtime.shares.share_changes import ShareChanges

_LOG = logging.getLogger(__name__)

_POLL_S = 1.0
"""Longest wait of an actor for an event to return."""

_SPARES_S = 5.0
"""Interval between two looks at the spare processes."""

_FIRST_SPARES_US = 20 * US_PER_S
"""Run time before which none is made: it loads for ten seconds of a core, which first labels need."""

_OVERDUE = "it did not release its share in time"

HUNG_US = 60 * US_PER_S
"""Time without a reply to a poll, which an actor answers within a second, whatever else it does."""

LOADING_US = 600 * US_PER_S
"""Time in which a new actor must have loaded and replied, also on a slow machine."""

_OVERSLEPT_US = 5 * US_PER_S
"""After a longer time between two looks it was the caller that was stopped."""

Worker = tuple[StreamId, ev.Role]


class HungActors:
    """Finds hung actors by unanswered polls.

    A process that was stopped, or waits for a device for ever, neither works nor dies.
    """

    def __init__(self) -> None:
        self._since_us: dict[Any, int] = {}
        self._looked_us: int | None = None

    def watch_loading(self, actor: Any, now_us: int) -> None:
        """Notes that an actor is made, and polled for the first time."""
        self._since_us[actor] = now_us + LOADING_US - HUNG_US

    def note_reply(self, actor: Any, now_us: int) -> None:
        """Notes that an actor has replied, and is polled again."""
        self._since_us[actor] = now_us

    def forget_actor(self, actor: Any) -> None:
        """Watches an actor no more."""
        self._since_us.pop(actor, None)

    def pop_hung(self, now_us: int) -> list[Any]:
        """Returns the actors that hang, once each; call it often, after all replies were handled."""
        overslept_us = 0 if self._looked_us is None else now_us - self._looked_us
        self._looked_us = now_us
        if overslept_us > _OVERSLEPT_US:
            self._since_us = {actor: at_us + overslept_us for actor, at_us in self._since_us.items()}
        hung = [actor for actor, at_us in self._since_us.items() if now_us - at_us > HUNG_US]
        for actor in hung:
            self.forget_actor(actor)
        return hung


class WorkerLifecycle:
    """The workers of all streams, and which process each is in. No method blocks.

    A worker is in a polled process, or moving: a call in flight lets it enter a process or leave one. It has
    ended when neither holds.

    Args:
        actors: all of them, ready.
        clock: run time.
        calls: calls in flight.
        shares: of all jobs; those of a worker that has ended are released.
        emit: callback for events about workers.
        receive: callback for the events of actors, but those of streams that were set aside.
        ended: callback when a worker has ended, and no reply to it is still to come.
        profiler_died: callback for the error with which the micro-profiler has died.

    Attributes:
        set_aside: streams whose workers have ended, or are about to.
    """

    def __init__(
        self,
        actors: FleetActors,
        clock: RunClock,
        calls: RemoteCalls,
        shares: ShareChanges,
        emit: Callable[[ev.Event], None],
        receive: Callable[[ev.Event], None],
        ended: Callable[[StreamId, ev.Role], None],
        profiler_died: Callable[[RayError], None],
    ) -> None:
        self.set_aside: set[StreamId] = set()
        self._actors, self._clock, self._calls, self._shares = actors, clock, calls, shares
        self._emit, self._receive, self._on_end, self._profiler_died = emit, receive, ended, profiler_died
        # Polled actors and the workers in them; the micro-profiler has none.
        self._polled: dict[Any, set[Worker]] = {}
        self._hung = HungActors()
        self._overdue: set[Worker] = set()
        # Calls in flight by which workers enter or leave a process.
        self._moving: Counter[Worker] = Counter()
        self._postponed: defaultdict[StreamId, list[Callable[[], None]]] = defaultdict(list)
        self._spares_due_s = self._lost_due_s = 0.0

    def poll_stream(self, stream: StreamId) -> None:
        """Receives the events of a stream's workers from now on."""
        self.set_aside.discard(stream)
        for role in ev.Role:
            self.poll_actor(self._actors.streams[stream].worker(role), (stream, role))

    def poll_actor(self, actor: Any, *workers: Worker) -> None:
        """Polls an actor from now on, if it is not polled yet, and adds workers to it."""
        if actor not in self._polled:
            self._polled[actor] = set()
            self._hung.watch_loading(actor, max(self._clock.now_us(), 0))
            self._poll(actor)
        self._polled[actor].update(workers)

    def living_roles(self, stream: StreamId) -> frozenset[ev.Role]:
        """Returns the roles of a stream whose workers have not ended."""
        workers = (*(worker for workers in self._polled.values() for worker in workers), *+self._moving)
        return frozenset(role for one, role in workers if one == stream)

    def call_when_joined(self, stream: StreamId, call: Callable[[], None]) -> None:
        """Makes a call to a stream's inference, which cannot take it while it is joining its process.

        It is not made if the stream's workers are ended first.
        """
        if self._moving[stream, ev.Role.INFERENCE] > 0 and stream not in self.set_aside:
            self._postponed[stream].append(call)
        else:
            call()

    def restart_worker(self, stream: StreamId, role: ev.Role) -> None:
        """Starts a worker again in another process; ``WorkerBack`` or ``WorkerDied`` follows."""
        self.set_aside.discard(stream)
        _LOG.warning("%s: its %s worker is started again", stream, role)
        begun = self._actors.remake_worker(stream, role, self._clock.started_monotonic_ns)
        self._follow_move(stream, role, begun, is_back=True)

    def move_retraining(self, stream: StreamId) -> Any:
        """Moves the retraining of a stream to a trainer with fewer jobs; None if it stays.

        Returns:
            Reference of a reply that comes when it is there.
        """
        training = self._shares.training_streams()
        if training[stream] > 1:
            return None  # its last job has not ended yet
        started_ns = self._clock.started_monotonic_ns
        moved = self._actors.move_retraining(stream, set(training) - {stream}, started_ns)
        if moved is not None:
            for workers in self._polled.values():
                workers.discard((stream, ev.Role.RETRAINING))
            self._follow_move(stream, ev.Role.RETRAINING, moved, is_back=False)
        return moved

    def _follow_move(self, stream: StreamId, role: ev.Role, moved: Any, is_back: bool) -> None:
        """Follows a worker that enters a process."""
        actor = self._actors.streams[stream].worker(role)
        self._moving[stream, role] += 1
        self._calls.add_call(moved, partial(self._entered, stream, role, actor, is_back))
        self.poll_actor(actor)

    def _entered(
        self, stream: StreamId, role: ev.Role, actor: Any, is_back: bool, _value: None, error: RayError | None
    ) -> None:
        now_us = self._clock.now_us()
        self._moving[stream, role] -= 1
        charged = True
        if isinstance(error, RayActorError):
            charged = stream in self._note_death(actor)
        if stream in self.set_aside:
            if error is None:
                self._have_leave(actor, stream, role)
            self._end_unless_moving(stream, role)
        elif error is None and actor in self._polled:
            self._polled[actor].add((stream, role))
            if self._actors.streams[stream].paused:
                # Not before: calls may overtake each other in a process.
                self._actors.pause_stream(stream, True)
            if is_back:
                own = self._actors.streams[stream]
                moved = () if own.left_gpu is None else (own.config.gpu, own.left_gpu)
                self._emit(ev.WorkerBack(now_us, stream, role, *moved))
            if role is ev.Role.INFERENCE:
                for call in self._postponed.pop(stream, []):
                    self.call_when_joined(stream, call)
        else:
            reason = "its process died as soon as it was back" if error is None else in_words(error)
            self._shares.release_worker(Work(role), stream)  # of what was sent to it meanwhile
            self._emit(ev.WorkerDied(now_us, stream, role, reason, charged))

    def end_stream(self, stream: StreamId) -> None:
        """Ends a stream's workers; afterwards their events are ignored, except for their end."""
        self.set_aside.add(stream)
        self._postponed.pop(stream, None)
        own = self._actors.streams[stream]
        for role in ev.Role:
            worker = own.worker(role)
            if set(self._actors.streams_sharing_process(stream, role)) <= self.set_aside:
                self._actors.kill_process(worker)
            else:
                self._have_leave(worker, stream, role)

    def _have_leave(self, actor: Any, stream: StreamId, role: ev.Role) -> None:
        """Has a worker leave a process that goes on."""
        self._moving[stream, role] += 1
        self._calls.add_call(actor.remove_stream.remote(stream), partial(self._left, stream, role))

    def _left(self, stream: StreamId, role: ev.Role, _value: None, _error: RayError | None) -> None:
        if stream in self.set_aside:  # or it was started again meanwhile
            # It holds no share in either case: it has left, or its process has died.
            self.forget_worker(stream, role)
        self._moving[stream, role] -= 1
        self._end_unless_moving(stream, role)

    def _end_unless_moving(self, stream: StreamId, role: ev.Role) -> None:
        """Reports the end of a worker, unless a reply to it is still to come."""
        if not self._moving[stream, role]:
            del self._moving[stream, role]
            self._on_end(stream, role)

    def forget_worker(self, stream: StreamId, role: ev.Role) -> None:
        """Takes note that a worker has failed or left alone, and holds no share; its process goes on."""
        self._shares.release_worker(Work(role), stream)
        for workers in self._polled.values():
            workers.discard((stream, role))

    def end_overdue(self, holder: ShareHolder) -> None:
        """Kills a worker that does not release its share; it is then handled like any worker that died."""
        if holder.stream is None:
            self._actors.kill_process(self._actors.preparation)
            return
        role = ev.Role(holder.work)
        self._overdue.add((holder.stream, role))
        self._actors.kill_process(self._actors.streams[holder.stream].worker(role))

    def end_hung(self) -> None:
        """Kills processes that hang; they are then handled like any that died."""
        for actor in self._hung.pop_hung(self._clock.now_us()):
            workers = [f"{role} of {stream}" for stream, role in sorted(self._polled[actor])]
            _LOG.warning("the process of %s hangs and is killed", ", ".join(workers) or "the micro-profiler")
            self._actors.kill_process(actor)

    def renew_spares(self) -> None:
        """Replaces spare processes that were taken or have died, but not while a worker starts again.

        Before, processes on nodes that are gone are ended.
        """
        now_s, is_due = time.monotonic(), self._clock.now_us() >= _FIRST_SPARES_US
        if now_s >= self._lost_due_s:
            self._lost_due_s = now_s + _SPARES_S
            self._actors.end_lost()
        if is_due and now_s >= self._spares_due_s and not any(self._moving.values()):
            self._spares_due_s = now_s + _SPARES_S
            self._actors.make_spares()

    def _poll(self, actor: Any) -> None:
        poll = actor.poll.options(concurrency_group=EVENTS)
        self._calls.add_call(poll.remote(_POLL_S), partial(self._polled_events, actor))

    def _polled_events(self, actor: Any, events: Sequence[ev.Event], error: RayError | None) -> None:
        if error is not None:
            self._died(actor, error)
            return
        self._hung.note_reply(actor, self._clock.now_us())
        for event in events:
            is_set_aside = getattr(event, "stream", None) in self.set_aside
            if not is_set_aside or actor is self._actors.preparation:
                self._receive(event)
        self._poll(actor)

    def _died(self, actor: Any, error: RayError) -> None:
        """Handles the death of an actor and its workers; workers still joining are handled elsewhere."""
        charged = self._note_death(actor)
        self._hung.forget_actor(actor)
        for worker in sorted(self._polled.pop(actor)):
            stream, role = worker
            reason = _OVERDUE if worker in self._overdue else in_words(error)
            self._overdue.discard(worker)
            if stream not in self.set_aside and self._has_begun_again(worker):
                continue
            self._shares.release_worker(Work(role), stream)
            self._end_unless_moving(stream, role)
            if stream not in self.set_aside:
                died = ev.WorkerDied(self._clock.now_us(), stream, role, reason, stream in charged)
                self._emit(died)
        if actor is self._actors.preparation:
            self._profiler_died(error)

    def _note_death(self, actor: Any) -> frozenset[StreamId]:
        """Takes note of an actor's death; returns the streams to which it is charged.

        One that kept its share is known, and so are those with a retraining.
        """
        workers = self._polled.get(actor, set())
        overdue = {stream for stream, role in workers & self._overdue}
        training = self._shares.training_streams()
        trained = {stream for stream, role in workers if role is ev.Role.RETRAINING and training[stream]}
        return self._actors.note_death(actor, overdue or trained)

    def _has_begun_again(self, worker: Worker) -> bool:
        """Returns whether a worker whose old process has died now is in another one, or is joining it."""
        return self._moving[worker] > 0 or any(worker in workers for workers in self._polled.values())
