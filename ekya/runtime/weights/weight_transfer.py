"""Moves weights: from a trainer to inference, and back to earlier ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ray.exceptions import RayError

from ekya.core import events as ev
from ekya.core.units import JobId, ModelVersion, StreamId
from ekya.runtime.driver.actor_processes import RemoteCalls, log_failure
from ekya.runtime.driver.fleet_actors import StreamActors

_VERSIONS = 100
"""Newest versions of a stream that are known to have served; more than two labellings lie apart."""


@dataclass(frozen=True, slots=True)
class _Evaluated:
    """Weights that were evaluated on a window's labels: their version and reference."""

    version: ModelVersion
    weights: Any


class WeightTransfer:
    """Transfers the weights of all streams, from "epoch done" to "serves".

    =========  ==========================================================================================
    state      meaning, and what follows
    =========  ==========================================================================================
    trained    The best epoch so far, in its trainer. ``send_checkpoint`` gives it a version → pending.
    pending    The trainer sends the checkpoint through the object store, and inference prepares it beside
               the serving one. Retrainings and preparations that begin use it. Inference reports the hot
               swap (``note_swap``) → served; or that of a newer version, or the worker is restarted →
               rejected.
    served     It answers frames, and a restarted worker begins with it (``StreamActors.weights``).
               New labels are taken (``record_evaluation``) → evaluated.
    evaluated  Measured on new labels beside the weights that were evaluated before. If these were better,
               ``roll_back`` sends them again, as a new version (→ pending).
    rejected   Never reported, and never used again.
    =========  ==========================================================================================

    Args:
        streams: actors of the streams.
        calls: calls in flight.
    """

    def __init__(self, streams: Mapping[StreamId, StreamActors], calls: RemoteCalls) -> None:
        self._streams, self._calls = streams, calls
        # References to their bytes, by version.
        self._pending: dict[StreamId, dict[ModelVersion, Any]] = {stream: {} for stream in streams}
        # The last one serves.
        self._served_versions = {stream: [own.version] for stream, own in streams.items()}
        self._evaluated: dict[StreamId, _Evaluated] = {}
        self._earlier: dict[StreamId, _Evaluated] = {}

    def send_checkpoint(self, stream: StreamId, job: JobId, after: Sequence[Any]) -> None:
        """Sends a job's best checkpoint from the stream's trainer to its inference.

        ``after`` is the reference of a call that brings remote weights to the trainer first, if any.
        """
        own = self._streams[stream]
        version = ModelVersion(own.version + 1)
        # The bytes go from trainer to inference through the object store: this process passes references on
        # and never waits for them.
        send = own.retraining.send_checkpoint.options(num_returns=2)
        weights, accuracy = send.remote(stream, job, version, *after)
        self._begin(stream, version, weights)
        swapped = own.inference.receive_checkpoint.remote(stream, weights, accuracy, version, job)
        self._calls.add_call(swapped, partial(self._received, stream, weights))

    def _received(self, stream: StreamId, weights: Any, value: None, error: RayError | None) -> None:
        """Takes the weights that serve for the newest ones again if these could not be sent."""
        log_failure("ServeModel", value, error)
        own = self._streams.get(stream)
        if error is not None and own is not None and own.newest_weights is weights:
            own.newest_weights = own.weights

    def roll_back(self, stream: StreamId) -> bool:
        """Sends the weights that were evaluated before to inference again; False if there are none."""
        earlier = self._earlier.pop(stream, None)
        if earlier is None:
            return False
        own = self._streams[stream]
        version = ModelVersion(own.version + 1)
        self._evaluated[stream] = _Evaluated(version, earlier.weights)
        self._begin(stream, version, earlier.weights)
        swapped = own.inference.roll_back.remote(stream, earlier.weights, version, earlier.version)
        self._calls.add_call(swapped, partial(log_failure, "RollBack"))
        return True

    def serve_again(self, stream: StreamId, weights: Any, of: ModelVersion) -> None:
        """Sends weights that served as version ``of`` to inference again; a reference to their bytes."""
        version = ModelVersion(self._streams[stream].version + 1)
        self._begin(stream, version, weights)
        swapped = self._streams[stream].inference.roll_back.remote(stream, weights, version, of)
        self._calls.add_call(swapped, partial(log_failure, "RollBack"))

    def add_stream(self, stream: StreamId) -> None:
        """Takes up a stream that is added to the run; it serves the base model."""
        self._pending[stream] = {}
        self._served_versions[stream] = [self._streams[stream].version]

    def remove_stream(self, stream: StreamId) -> None:
        """Forgets a stream that was removed from the run."""
        known: tuple[dict[StreamId, Any], ...] = (
            self._pending,
            self._served_versions,
            self._evaluated,
            self._earlier,
        )
        for of_stream in known:
            of_stream.pop(stream, None)

    def _begin(self, stream: StreamId, version: ModelVersion, weights: Any) -> None:
        own = self._streams[stream]
        own.version, own.newest_weights = version, weights
        self._pending[stream][version] = weights

    def note_swap(self, event: ev.Event) -> bool:
        """Takes note of a hot swap; returns False for one of an earlier stream of this name."""
        if not isinstance(event, ev.Swapped) or event.stream not in self._pending:
            return True
        stream, version, pending = event.stream, event.version, self._pending[event.stream]
        if version not in pending:
            return False
        # Only now may a restarted worker begin with them: until the swap is reported they may be lost.
        self._streams[stream].weights = pending[version]
        self._pending[stream] = {newer: weights for newer, weights in pending.items() if newer > version}
        self._served_versions[stream] = [*self._served_versions[stream], version][-_VERSIONS:]
        return True

    def record_evaluation(self, stream: StreamId) -> ModelVersion | None:
        """Records that a stream's newest weights are evaluated on new labels.

        Returns:
            Version of the weights that were evaluated before; None if they are the same, or never served.
        """
        own = self._streams[stream]
        before, self._evaluated[stream] = (
            self._evaluated.get(stream),
            _Evaluated(own.version, own.newest_weights),
        )
        self._earlier.pop(stream, None)
        if before is None or before.version == own.version:
            return None
        if before.version not in self._served_versions[stream]:
            return None  # it was rejected, and never answered frames
        self._earlier[stream] = before
        return before.version
