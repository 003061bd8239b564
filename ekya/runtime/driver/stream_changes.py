"""Streams that join a live run, now or at their time, are paused and leave it."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from ray.exceptions import RayError

from ekya.config.fleet_file import FleetConfig
from ekya.core import events as ev
from ekya.core import requests as rq
from ekya.core.errors import UserError
from ekya.core.host import StreamCosts
from ekya.core.units import StreamId
from ekya.core.view import InferenceOption
from ekya.pipeline.setup import first_inference_options
from ekya.runtime.actors.actor_kinds import Ready
from ekya.runtime.actors.actor_messages import RunClock, in_words
from ekya.runtime.driver.actor_processes import RemoteCalls, log_failure
from ekya.runtime.driver.fleet_actors import FleetActors
from ekya.runtime.driver.profiler_calls import ProfilerCalls
from ekya.runtime.driver.worker_lifecycle import WorkerLifecycle
from ekya.runtime.shares.share_changes import ShareChanges
from ekya.runtime.weights.weight_transfer import WeightTransfer

Added = Callable[[str | None], None]
"""Callback when a stream is analysed, or with the reason why it is not added, in words."""


class LateStreams:
    """Holds back the events of streams that have not been added.

    Args:
        added: the times at which streams are added.
    """

    def __init__(self, added: Sequence[ev.StreamAdded]) -> None:
        self._added = deque(sorted(added, key=lambda event: event.t_us))
        self._held: dict[StreamId, list[ev.Event]] = {event.stream: [] for event in added}

    @property
    def next_us(self) -> int | None:
        """Run time at which the next stream joins; None when all have joined."""
        return self._added[0].t_us if self._added else None

    def join_due(self, now_us: int) -> list[ev.Event]:
        """Returns the due StreamAdded events, each followed by the events held back for its stream."""
        events: list[ev.Event] = []
        while self._added and self._added[0].t_us <= now_us:
            events += self.release_held(self._added.popleft())
        return events

    def expect_stream(self, stream: StreamId) -> None:
        """Holds back the events of a stream that is about to be added."""
        self._held[stream] = []

    def release_held(self, added: ev.StreamAdded) -> list[ev.Event]:
        """Returns the addition of an expected stream, followed by the events held back for it."""
        held = self._held.pop(added.stream, [])
        return [added, *(replace(event, t_us=max(event.t_us, added.t_us)) for event in held)]

    def drop_stream(self, stream: StreamId) -> None:
        """Forgets an expected stream that is not added after all."""
        self._held.pop(stream, None)

    def let_through(self, event: ev.Event) -> list[ev.Event]:
        """Returns the event, unless its stream has not joined: then holds it back, or drops a measurement."""
        stream = getattr(event, "stream", None)
        if stream not in self._held:
            return [event]
        if not isinstance(event, ev.ShareMeasured | ev.NeedMeasured | ev.FramesCounted):
            self._held[stream].append(event)
        return []


class StreamChanges:
    """Changes of the streams of a run, made by the thread of its loop. No method blocks.

    Args:
        actors: of the run.
        ready: settings of their streams.
        weights: of their streams.
        late: holds back the events of a stream that is being added.
        clock: run time.
        calls: calls in flight.
        workers: of the streams.
        shares: of their jobs.
        profiler: calls to the micro-profiler.
        emit: callback for events.
    """

    def __init__(
        self,
        actors: FleetActors,
        ready: dict[StreamId, Ready],
        weights: WeightTransfer,
        late: LateStreams,
        clock: RunClock,
        calls: RemoteCalls,
        workers: WorkerLifecycle,
        shares: ShareChanges,
        profiler: ProfilerCalls,
        emit: Callable[[ev.Event], None],
    ) -> None:
        self._actors, self._ready, self._weights, self._late = actors, ready, weights, late
        self._clock, self._calls, self._workers = clock, calls, workers
        self._shares, self._profiler, self._emit = shares, profiler, emit
        # Workers that a removed stream still has.
        self._leaving: dict[StreamId, set[ev.Role]] = {}

    def add_stream(self, fleet: FleetConfig, stream: StreamId, costs: StreamCosts, added: Added) -> None:
        """Adds a stream, which serves the base model.

        Args:
            fleet: with the stream.
            stream: the new one, which is not leaving.
            costs: of its frames, until they are measured.
            added: callback.
        """
        self._late.expect_stream(stream)
        begun, admitted = self._actors.add_stream(fleet, stream, costs, self._clock.started_monotonic_ns)
        self._workers.poll_stream(stream)
        self._calls.add_call(admitted, partial(log_failure, "the start of its retraining"))
        self._calls.add_call(begun, partial(self._begun, stream, costs, added))

    def _begun(
        self, stream: StreamId, costs: StreamCosts, added: Added, ready: Ready | None, error: RayError | None
    ) -> None:
        failed = in_words(error) if error is not None else None if ready is None else ready.died
        options: tuple[InferenceOption, ...] = ()
        if ready is not None and failed is None:
            try:
                options = _first_options(self._actors.fleet, stream, ready, costs)
            except UserError as refused:
                failed = str(refused)
        if ready is None or failed is not None:
            self._late.drop_stream(stream)
            self._leave(stream)
            added(failed or "its process has ended")
            return
        self._ready[stream] = ready
        self._weights.add_stream(stream)
        self._profiler.load_newest_model(stream)
        gpu = self._actors.home_gpu(stream)
        for event in self._late.release_held(ev.StreamAdded(self._clock.now_us(), stream, options, gpu)):
            self._emit(event)
        added(None)

    def require_terms(self, fleet: FleetConfig, stream: StreamId, costs: StreamCosts) -> None:
        """Raises UserError if a stream cannot keep its terms in this fleet."""
        _first_options(fleet, stream, self._ready[stream], costs)

    def pause_stream(self, stream: StreamId, paused: bool) -> None:
        """Closes the camera of a stream, or opens it again; the loop ends its retraining."""
        self._actors.pause_stream(stream, paused)
        if paused:
            self._shares.release_inference(stream)
        self._emit(rq.StreamPaused(self._clock.now_us(), stream, paused))

    def remove_stream(self, stream: StreamId) -> None:
        """Removes a stream; its workers end when their batches in flight are over."""
        self._emit(rq.StreamRemoved(self._clock.now_us(), stream))
        self._leave(stream)

    def is_leaving(self, stream: StreamId) -> bool:
        """Returns whether a removed stream still has workers."""
        return stream in self._leaving

    def may_be_added(self, stream: StreamId) -> bool:
        """Returns whether nothing is left of an earlier stream of this name, and no labels of it may come."""
        return not (self.is_leaving(stream) or self._profiler.is_preparing(stream))

    def note_worker_end(self, stream: StreamId, role: ev.Role) -> None:
        """Takes note that a worker has ended; a removed stream without workers is forgotten."""
        left = self._leaving.get(stream)
        if left is not None:
            left.discard(role)
            self._forget_if_gone(stream)

    def _leave(self, stream: StreamId) -> None:
        known = self._workers.living_roles(stream)
        self._workers.end_stream(stream)
        # One that had ended before may have to leave its process once more.
        self._leaving[stream] = {*known, *self._workers.living_roles(stream)}
        self._forget_if_gone(stream)

    def _forget_if_gone(self, stream: StreamId) -> None:
        if not self._leaving.get(stream, True):
            del self._leaving[stream]
            self._weights.remove_stream(stream)
            self._actors.remove_stream(stream)
            self._ready.pop(stream, None)
            if not self._profiler.is_preparing(
                stream
            ):  # or one of its name that is added later has it forgotten
                forgotten = self._actors.preparation.forget_stream.remote(stream)
                self._calls.add_call(forgotten, partial(log_failure, "forget_stream"))


def _first_options(
    fleet: FleetConfig, stream: StreamId, ready: Ready, costs: StreamCosts
) -> tuple[InferenceOption, ...]:
    settings, costly = ready.settings, costs.frame_gpu_s
    speed, following = settings.inference_speed, costs.following_gpu_s
    return first_inference_options(fleet, stream, settings.fps, costly, speed, following)
