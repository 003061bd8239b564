"""Jobs on other servers as their home server sees them: inputs, progress and weights, and inference."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from ekya.core import events as ev
from ekya.core.commands import StartRetraining
from ekya.core.units import JobId, StreamId
from ekya.core.weights import RemoteCheckpoint
from ekya.pipeline.labels import StreamLabels
from ekya.pipeline.settings import PreparationSettings
from ekya.runtime.actors.actor_kinds import Ready
from ekya.runtime.actors.actor_messages import in_words
from ekya.runtime.driver.actor_processes import RemoteCalls, log_failure
from ekya.runtime.driver.fleet_actors import FleetActors, StreamActors

if TYPE_CHECKING:
    from ekya.models.training.exemplars import ExemplarMemory

_LOG = logging.getLogger(__name__)
_LABELS_S = 20.0
"""Longest wait of the loop for labels that are made: a micro-profiler that hangs now must not hold it."""

_NO_LABELS = "there are no labels to train on"


@dataclass(frozen=True, slots=True, eq=False)
class StreamRetrainInputs:
    """Arguments of ``retraining_of``, except for γ and the window.

    Attributes:
        weights: of the model that serves, or is about to.
        labels: of the window.
        memory: exemplars of earlier windows.
        settings: of the stream.
    """

    weights: bytes
    labels: StreamLabels
    memory: "ExemplarMemory"
    settings: PreparationSettings


@dataclass(frozen=True, slots=True, eq=False)
class MaterialToFetch:
    """The same as references into the object store; None where there were no labels."""

    weights: Any
    labels: Any
    memory: Any
    settings: PreparationSettings

    def fetch(self, timeout_s: float) -> StreamRetrainInputs:
        """Fetches the material. Thread-safe.

        Raises:
            LookupError: part of it is lost or never existed; the message says which.
            TimeoutError: it did not arrive in time.
        """
        if self.labels is None:
            raise LookupError(_NO_LABELS)
        try:
            weights, labels, memory = ray.get([self.weights, self.labels, self.memory], timeout=timeout_s)
        except GetTimeoutError:
            raise TimeoutError(f"what a retraining needs has not come within {timeout_s:g} s") from None
        except RayError as error:
            raise LookupError(f"what a retraining needs is lost: {in_words(error)}") from error
        if labels is None:
            raise LookupError(_NO_LABELS)
        return StreamRetrainInputs(weights, labels, memory, self.settings)


class RetrainInputs:
    """Retraining inputs of all streams.

    Args:
        actors: hold the inputs.
        ready: settings of their streams.
        keep_labels: callback for the labels of each stream as soon as this process has them.
    """

    def __init__(
        self,
        actors: FleetActors,
        ready: Mapping[StreamId, Ready],
        keep_labels: Callable[[StreamId, StreamLabels], None],
    ) -> None:
        self._actors = actors
        self._ready = ready
        self._keep_labels = keep_labels
        self._labels: dict[StreamId, Any] = {}

    def begin_window(self) -> None:
        """Forgets the labels of the last window."""
        self._labels = {}

    def fetch_labels(self, stream: StreamId, window: int) -> None:
        """Fetches and keeps new labels; they stay in the object store while the window lasts."""
        reference = self._actors.preparation.newest_labels.remote(window, stream)
        try:
            labels = ray.get(reference, timeout=_LABELS_S)
        except RayError as error:
            _LOG.error("%s: its labels are lost: %s", stream, in_words(error))
            return
        self._labels[stream] = reference
        if labels is not None:
            self._keep_labels(stream, labels)

    def labels(self, stream: StreamId) -> Any:
        """Returns the reference to the window's labels; None before they exist."""
        return self._labels.get(stream)

    def inputs_for_retraining(self, stream: StreamId) -> MaterialToFetch:
        """Returns references to the inputs of a retraining that would begin now; does not block."""
        own = self._actors.streams[stream]
        memory = own.retraining.exemplar_memory.remote(stream)
        return MaterialToFetch(own.newest_weights, self.labels(stream), memory, self._ready[stream].settings)


@dataclass(slots=True, eq=False)
class _Remote:
    """One remote retraining.

    Attributes:
        best: returns the best weights so far.
        labels: reference to those that it is trained on; newer ones may come while it runs.
        accuracies: after each epoch reported so far.
        sent: Ray's reference to the call that gave weights to the stream's trainer; None before.
        sent_epoch: the epoch of these weights.
    """

    command: StartRetraining
    best: Callable[[], RemoteCheckpoint]
    labels: Any
    accuracies: tuple[float, ...] = ()
    sent: Any = None
    sent_epoch: int = 0

    @property
    def best_epoch(self) -> int:
        """The latest epoch with the highest accuracy; 0 before the first."""
        return max(enumerate(self.accuracies, 1), key=lambda one: (one[1], one[0]), default=(0, 0.0))[0]


class RemoteRetrainings:
    """Holds the newest remote retraining of each stream; the one before it is over.

    Args:
        streams: actors of the streams.
        inputs: of their retrainings.
        calls: calls in flight.
        now_us: returns run time.
        emit: callback for progress and end events.
    """

    def __init__(
        self,
        streams: Mapping[StreamId, StreamActors],
        inputs: RetrainInputs,
        calls: RemoteCalls,
        now_us: Callable[[], int],
        emit: Callable[[ev.Event], None],
    ) -> None:
        self._streams, self._inputs, self._calls = streams, inputs, calls
        self._now_us, self._emit = now_us, emit
        self._newest: dict[StreamId, _Remote] = {}
        self._jobs: set[JobId] = set()

    def inputs_for_retraining(self, stream: StreamId) -> MaterialToFetch:
        """Returns references to the inputs of a retraining that would begin now; does not block."""
        return self._inputs.inputs_for_retraining(stream)

    def report_progress(
        self,
        command: StartRetraining,
        accuracies: Sequence[float],
        best: Callable[[], RemoteCheckpoint],
        over: bool,
    ) -> None:
        """Reports the progress of a remote retraining: emits events for new epochs and for the end of γ.

        The executor can serve its best weights like any others as soon as it receives the command, also after
        a command to stop the retraining.

        Args:
            command: the loop's command. The executor never receives it.
            accuracies: after each epoch so far, on the validation crops of the stream's material.
            best: returns the weights of the best epoch; called only if they are needed.
            over: no further progress will be reported.
        """
        stream, job = command.stream, command.job
        remote = self._newest.get(stream)
        if remote is None or remote.command.job != job:
            remote = self._newest[stream] = _Remote(command, best, self._inputs.labels(stream))
            self._jobs.add(job)
        remote.best = best
        now_us = self._now_us()
        for epoch in range(len(remote.accuracies) + 1, len(accuracies) + 1):
            accuracy = accuracies[epoch - 1]
            self._emit(ev.RetrainProgress(now_us, stream, job, epoch, accuracy, 0.0))
        # Its processes may end after its last epoch, so the end is reported only once.
        ends = len(remote.accuracies) < command.config.epochs <= len(accuracies)
        remote.accuracies = tuple(accuracies)
        if ends:
            self._emit(ev.RetrainFinished(now_us, stream, job, 0.0))
        if over:
            self.send_best_weights(stream, job)

    def has_job(self, job: JobId) -> bool:
        """Returns whether a job is a remote one that has reported progress."""
        return job in self._jobs

    def send_best_weights(self, stream: StreamId, job: JobId) -> list[Any]:
        """Sends the best weights to the stream's trainer, unless it has them; returns the Ray reference.

        Empty if the job is not a remote one or has no epoch yet. The call needs no share.
        """
        remote = self._newest.get(stream)
        if remote is None or remote.command.job != job or not remote.accuracies:
            return []
        if remote.best_epoch > remote.sent_epoch:
            best = remote.best()
            receive = self._streams[stream].retraining.receive_remote_checkpoint
            remote.sent = receive.remote(stream, remote.command, best.weights, best.accuracy, remote.labels)
            remote.sent_epoch = best.epoch
            self._calls.add_call(remote.sent, partial(log_failure, "receive_remote_checkpoint"))
        return [remote.sent]
