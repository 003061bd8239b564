"""Adds streams to a live run, pauses and removes them."""

from collections.abc import Callable
from functools import partial

from ray.exceptions import RayError

from ekya.config.fleet_file import FleetConfig
from ekya.core import events as ev
from ekya.core import requests as rq
from ekya.core.host import StreamCosts
from ekya.core.units import StreamId
from ekya.pipeline.setup import first_inference_options
from ekya.runtime.actor_kinds import Ready
from ekya.runtime.fleet_actors import FleetActors
from ekya.runtime.mailbox import RunClock
from ekya.runtime.remote_calls import RemoteCalls
from ekya.runtime.weight_transfer import WeightTransfer

Added = Callable[[RayError | None], None]
"""Callback when a stream serves, or with the reason why it does not."""


class StreamChanges:
    """Changes of the streams of a run, made by the thread of its loop. No method blocks.

    Args:
        actors: of the run.
        ready: settings of their streams.
        weights: of their streams.
        clock: run time.
        calls: calls in flight.
        emit: callback for events.
        serves: callback when both workers of a new stream run.
        end: callback that ends the workers of a stream; ``ended`` is called for each.
        release: callback that releases the share of a stream's inference.
    """

    def __init__(
        self,
        actors: FleetActors,
        ready: dict[StreamId, Ready],
        weights: WeightTransfer,
        clock: RunClock,
        calls: RemoteCalls,
        emit: Callable[[ev.Event], None],
        serves: Callable[[StreamId], None],
        end: Callable[[StreamId], None],
        release: Callable[[StreamId], None],
    ) -> None:
        self._actors, self._ready, self._weights = actors, ready, weights
        self._clock, self._calls, self._emit = clock, calls, emit
        self._serves, self._end, self._release = serves, end, release
        # Workers that a removed stream still has.
        self._leaving: dict[StreamId, set[ev.Role]] = {}

    def add(self, fleet: FleetConfig, stream: StreamId, costs: StreamCosts, added: Added) -> None:
        """Adds a stream, which serves the base model.

        Args:
            fleet: with the stream.
            stream: the new one.
            costs: of its frames, until they are measured.
            added: callback.
        """
        begun = self._actors.add(fleet, stream, costs, self._clock.started_monotonic_ns)
        self._calls.add(begun, partial(self._begun, stream, costs, added))

    def _begun(
        self, stream: StreamId, costs: StreamCosts, added: Added, ready: Ready, error: RayError | None
    ) -> None:
        if error is not None:
            self._leaving[stream] = set(ev.Role)
            self._end(stream)
            added(error)
            return
        self._ready[stream] = ready
        self._weights.add(stream)
        self._serves(stream)
        settings, fleet = ready.settings, self._actors.fleet
        options = first_inference_options(
            fleet,
            stream,
            settings.fps,
            costs.frame_gpu_s,
            settings.inference_speed,
            costs.following_gpu_s,
        )
        self._emit(ev.StreamAdded(self._clock.now_us(), stream, options))
        added(None)

    def pause(self, stream: StreamId, paused: bool) -> None:
        """Closes the camera of a stream and gives its share to the others, or opens it again."""
        self._actors.pause(stream, paused)
        if paused:
            self._release(stream)
        self._emit(rq.StreamPaused(self._clock.now_us(), stream, paused))

    def remove(self, stream: StreamId) -> None:
        """Removes a stream; its workers end when their batches in flight are over."""
        self._emit(rq.StreamRemoved(self._clock.now_us(), stream))
        self._leaving[stream] = set(ev.Role)
        self._end(stream)

    def ended(self, stream: StreamId, role: ev.Role) -> None:
        """Takes note that a worker has ended; a removed stream without workers is forgotten."""
        left = self._leaving.get(stream)
        if left is None:
            return
        left.discard(role)
        if not left:
            del self._leaving[stream]
            self._weights.remove(stream)
            self._actors.remove(stream)
            self._ready.pop(stream, None)
