"""Moves weights from a trainer to inference, and back to earlier ones: a state machine for every version."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import ray
from ray.exceptions import RayError

from ekya.core import events as ev
from ekya.core.units import JobId, ModelVersion, StreamId
from ekya.runtime.fleet_actors import StreamActors

_LOG = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Transfer:
    """A version of a stream's weights between ``send`` or ``roll_back`` and its end.

    Attributes:
        weights: reference to their bytes in the object store.
        unstored: reference of a reply that comes when the object store has them; None once it has.
        event: of the hot swap; None while they are pending.
    """

    version: ModelVersion
    weights: Any
    unstored: Any = None
    event: ev.ModelSwapped | ev.RolledBack | None = None


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
    trained    The best epoch so far, in the stream's trainer. ``send`` gives it a version → pending.
    pending    The trainer sends the checkpoint, through the object store or first over CUDA IPC, and
               inference prepares it beside the serving one. Retrainings and preparations that begin use
               it. Inference reports the hot swap (``on_event``) → swapped; or that of a newer version, or
               the worker is restarted → rejected.
    swapped    It answers frames, but the object store does not have it yet; its event is withheld. A
               reported hot swap must be durable: a worker that dies is restarted with the reported
               weights, and a roll-back or a resume needs them too. The object store has it and all before
               it (``on_stored``) → served; its trainer dies first → rejected.
    served     The event is emitted, and a restarted worker begins with it (``StreamActors.weights``).
               New labels are taken (``evaluate``) → evaluated.
    evaluated  Measured on new labels beside the weights that were evaluated before. If these were better,
               ``roll_back`` sends them again, as a new version (→ pending).
    rejected   Never reported, and never used again.
    =========  ==========================================================================================

    The activations that the micro-profiler computes belong to evaluated weights, and serve a retraining that
    starts from the same.

    Args:
        streams: actors of the streams.
        over_ipc: whether weights go over CUDA IPC, and to the object store later.
    """

    def __init__(self, streams: Mapping[StreamId, StreamActors], over_ipc: bool) -> None:
        self._streams = streams
        self._over_ipc = over_ipc
        self._transfers: dict[StreamId, list[_Transfer]] = {stream: [] for stream in streams}
        self._evaluated: dict[StreamId, _Evaluated] = {}
        self._earlier: dict[StreamId, _Evaluated] = {}
        self._activations: dict[StreamId, Any] = {}
        self._arriving: dict[Any, tuple[StreamId, Any]] = {}

    @property
    def references(self) -> Collection[Any]:
        """References to wait for, to be passed to ``on_stored``."""
        lines = self._transfers.values()
        return [one.unstored for line in lines for one in line if one.event and one.unstored is not None]

    def send(self, stream: StreamId, job: JobId, after: Sequence[Any]) -> dict[Any, str]:
        """Sends a job's best checkpoint to inference; returns the calls, and what to call them in the log.

        Args:
            stream: of the job.
            job: in the stream's trainer.
            after: reference of a call that brings remote weights there, which must end first, if any.
        """
        own = self._streams[stream]
        version = ModelVersion(own.version + 1)
        calls: dict[Any, str] = {}
        if self._over_ipc:
            share = own.retraining.share.options(num_returns=2)
            shared, accuracy = share.remote(stream, job, version, *after)
            received = own.inference.receive.remote(stream, shared, accuracy, version, job)
            calls[received] = "CUDA IPC, in whose place the object store is used now,"
        send = own.retraining.send.options(num_returns=2)
        weights, accuracy = send.remote(stream, job, version, list(calls), *after)
        self._begin(stream, _Transfer(version, weights, accuracy if self._over_ipc else None))
        received = own.inference.receive.remote(stream, weights, accuracy, version, job)
        return calls | {received: "ServeModel"}

    def roll_back(self, stream: StreamId) -> dict[Any, str]:
        """Sends the weights evaluated before to inference again, if any; returns as ``send``."""
        earlier = self._earlier.pop(stream, None)
        if earlier is None:
            return {}
        own = self._streams[stream]
        version = ModelVersion(own.version + 1)
        self._evaluated[stream] = _Evaluated(version, earlier.weights)
        self._begin(stream, _Transfer(version, earlier.weights))
        return {own.inference.roll_back.remote(stream, earlier.weights, version, earlier.version): "RollBack"}

    def _begin(self, stream: StreamId, transfer: _Transfer) -> None:
        own = self._streams[stream]
        own.version, own.newest_weights = transfer.version, transfer.weights
        self._transfers[stream].append(transfer)

    def on_event(self, event: ev.Event) -> Sequence[ev.Event]:
        """Returns the events that can be emitted now: a hot swap waits for its weights and those before.

        A stream's events keep their order, so that the last one emitted is what serves.
        """
        if not isinstance(event, ev.ModelSwapped | ev.RolledBack):
            return (event,)
        line = self._transfers[event.stream]
        line[:] = [one for one in line if one.event is not None or one.version >= event.version]
        next(one for one in line if one.version == event.version).event = event
        return self._served(event.stream)

    def on_stored(self, reference: Any) -> Sequence[ev.Event]:
        """Handles weights that the object store has, or that are lost; returns events that can be emitted."""
        stream, one = next(
            (stream, one)
            for stream, line in self._transfers.items()
            for one in line
            if one.unstored == reference
        )
        one.unstored = None
        try:
            ray.get(reference)
        except RayError:
            self._transfers[stream].remove(one)
            _LOG.error(
                "%s: weights %d serve, and were lost with their trainer; workers that restart begin with "
                "those before them",
                stream,
                one.version,
            )
        return self._served(stream)

    def _served(self, stream: StreamId) -> Sequence[ev.Event]:
        line = self._transfers[stream]
        served = list(takewhile(lambda one: one.event is not None and one.unstored is None, line))
        del line[: len(served)]
        for one in served:
            self._streams[stream].weights = one.weights
        return [one.event for one in served if one.event is not None]

    def evaluate(self, stream: StreamId) -> ModelVersion | None:
        """Records that a stream's newest weights are evaluated on new labels.

        Returns:
            Version of the weights that were evaluated before; None if they are the same.
        """
        own = self._streams[stream]
        before, self._evaluated[stream] = (
            self._evaluated.get(stream),
            _Evaluated(own.version, own.newest_weights),
        )
        self._earlier.pop(stream, None)
        if before is None or before.version == own.version:
            return None
        self._earlier[stream] = before
        return before.version

    def begin_window(self) -> None:
        """Forgets activations of the crops of the last window."""
        self._activations, self._arriving = {}, {}

    def expect_activations(self, stream: StreamId, arrived: Any, activations: Any) -> None:
        """Records that the micro-profiler sends activations of the evaluated weights to the object store.

        Args:
            stream: of the weights.
            arrived: reference of a reply that says that they have arrived.
            activations: reference to them, which this process does not fetch.
        """
        self._arriving[arrived] = (stream, activations)

    def has_arrived(self, reference: Any) -> None:
        """Marks activations as available, if the reference is one of theirs.

        Only then may a retraining depend on them: it must not wait for something that may never arrive.
        """
        if reference in self._arriving:
            stream, activations = self._arriving.pop(reference)
            self._activations[stream] = activations

    def activations(self, stream: StreamId) -> Any:
        """Returns the reference to activations of the newest weights; None if others were evaluated."""
        evaluated = self._evaluated.get(stream)
        same = evaluated is not None and evaluated.weights is self._streams[stream].newest_weights
        return self._activations.get(stream) if same else None
