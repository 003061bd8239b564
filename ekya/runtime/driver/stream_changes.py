"""Adds streams to a live run, pauses and removes them."""

from collections.abc import Callable
from functools import partial
from typing import Protocol

from ray.exceptions import RayError

from ekya.config.fleet_file import FleetConfig
from ekya.core import events as ev
from ekya.core import requests as rq
from ekya.core.errors import UserError
from ekya.core.host import StreamCosts
from ekya.core.units import StreamId
from ekya.core.view import InferenceOption
from ekya.pipeline.setup import first_inference_options
from ekya.runtime.actors.actor_errors import in_words
from ekya.runtime.actors.actor_kinds import Ready
from ekya.runtime.actors.mailbox import RunClock
from ekya.runtime.driver.fleet_actors import FleetActors
from ekya.runtime.driver.late_streams import LateStreams
from ekya.runtime.driver.remote_calls import RemoteCalls, log_failure
from ekya.runtime.weights.weight_transfer import WeightTransfer

Added = Callable[[str | None], None]
"""Callback when a stream is analysed, or with the reason why it is not added, in words."""


class WorkerTable(Protocol):
    """The workers whose events are received, and the shares that they hold."""

    def follow(self, stream: StreamId) -> None:
        """Receives the events of a stream's workers from now on."""

    def followed(self, stream: StreamId) -> frozenset[ev.Role]:
        """Returns the workers of a stream that have not ended."""

    def prepares(self, stream: StreamId) -> bool:
        """Returns whether labels and profiles of a stream may still come."""

    def end(self, stream: StreamId) -> None:
        """Ends the workers of a stream; each is reported to ``StreamChanges.ended``."""

    def release(self, stream: StreamId) -> None:
        """Releases the share of a stream's inference."""

    def emit(self, event: ev.Event) -> None:
        """Adds an event to the next batch."""


class StreamChanges:
    """Changes of the streams of a run, made by the thread of its loop. No method blocks.

    Args:
        actors: of the run.
        ready: settings of their streams.
        weights: of their streams.
        late: holds back the events of a stream that is being added.
        clock: run time.
        calls: calls in flight.
        workers: the executor's.
        make_known: has the micro-profiler load the weights of a stream.
    """

    def __init__(
        self,
        actors: FleetActors,
        ready: dict[StreamId, Ready],
        weights: WeightTransfer,
        late: LateStreams,
        clock: RunClock,
        calls: RemoteCalls,
        workers: WorkerTable,
        make_known: Callable[[StreamId], object],
    ) -> None:
        self._actors, self._ready, self._weights, self._late = actors, ready, weights, late
        self._clock, self._calls, self._workers, self._make_known = clock, calls, workers, make_known
        # Workers that a removed stream still has.
        self._leaving: dict[StreamId, set[ev.Role]] = {}

    def add(self, fleet: FleetConfig, stream: StreamId, costs: StreamCosts, added: Added) -> None:
        """Adds a stream, which serves the base model.

        Args:
            fleet: with the stream.
            stream: the new one, which is not leaving.
            costs: of its frames, until they are measured.
            added: callback.
        """
        self._late.expect(stream)
        begun, admitted = self._actors.add(fleet, stream, costs, self._clock.started_monotonic_ns)
        self._workers.follow(stream)
        self._calls.add(admitted, partial(log_failure, "the start of its retraining"))
        self._calls.add(begun, partial(self._begun, stream, costs, added))

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
            self._late.drop(stream)
            self._leave(stream)
            added(failed or "its process has ended")
            return
        self._ready[stream] = ready
        self._weights.add(stream)
        self._make_known(stream)
        gpu = self._actors.home(stream)
        for event in self._late.joined(ev.StreamAdded(self._clock.now_us(), stream, options, gpu)):
            self._workers.emit(event)
        added(None)

    def require_terms(self, fleet: FleetConfig, stream: StreamId, costs: StreamCosts) -> None:
        """Raises UserError if a stream cannot keep its terms in this fleet."""
        _first_options(fleet, stream, self._ready[stream], costs)

    def pause(self, stream: StreamId, paused: bool) -> None:
        """Closes the camera of a stream, or opens it again; the loop ends its retraining."""
        self._actors.pause(stream, paused)
        if paused:
            self._workers.release(stream)
        self._workers.emit(rq.StreamPaused(self._clock.now_us(), stream, paused))

    def remove(self, stream: StreamId) -> None:
        """Removes a stream; its workers end when their batches in flight are over."""
        self._workers.emit(rq.StreamRemoved(self._clock.now_us(), stream))
        self._leave(stream)

    def is_leaving(self, stream: StreamId) -> bool:
        """Returns whether a removed stream still has workers."""
        return stream in self._leaving

    def may_be_added(self, stream: StreamId) -> bool:
        """Returns whether nothing is left of an earlier stream of this name, and no labels of it may come."""
        return not (self.is_leaving(stream) or self._workers.prepares(stream))

    def ended(self, stream: StreamId, role: ev.Role) -> None:
        """Takes note that a worker has ended; a removed stream without workers is forgotten."""
        left = self._leaving.get(stream)
        if left is not None:
            left.discard(role)
            self._forget_if_gone(stream)

    def _leave(self, stream: StreamId) -> None:
        known = self._workers.followed(stream)
        self._workers.end(stream)
        # One that had ended before may have to leave its process once more.
        self._leaving[stream] = {*known, *self._workers.followed(stream)}
        self._forget_if_gone(stream)

    def _forget_if_gone(self, stream: StreamId) -> None:
        if not self._leaving.get(stream, True):
            del self._leaving[stream]
            self._weights.remove(stream)
            self._actors.remove(stream)
            self._ready.pop(stream, None)
            if not self._workers.prepares(stream):  # or one of its name that is added later has it forgotten
                forgotten = self._actors.preparation.forget.remote(stream)
                self._calls.add(forgotten, partial(log_failure, "forget"))


def _first_options(
    fleet: FleetConfig, stream: StreamId, ready: Ready, costs: StreamCosts
) -> tuple[InferenceOption, ...]:
    settings, costly = ready.settings, costs.frame_gpu_s
    speed, following = settings.inference_speed, costs.following_gpu_s
    return first_inference_options(fleet, stream, settings.fps, costly, speed, following)
