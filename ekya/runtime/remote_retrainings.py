"""Tracks remote retrainings on the home server: their progress, and their weights for the local trainer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ekya.core import events as ev
from ekya.core.commands import StartRetraining
from ekya.core.units import JobId, StreamId
from ekya.runtime.fleet_actors import StreamActors
from ekya.runtime.retrain_inputs import RetrainInputs


@dataclass(frozen=True, slots=True, eq=False)
class RemoteCheckpoint:
    """Weights that another server has trained.

    Attributes:
        weights: a checkpoint.
        accuracy: on the validation crops.
        epoch: after which they were taken.
    """

    weights: bytes
    accuracy: float
    epoch: int


@dataclass(slots=True, eq=False)
class _Remote:
    """One remote retraining.

    Attributes:
        best: returns the best weights so far.
        accuracies: after each epoch reported so far.
        sent: Ray's reference to the call that gave weights to the stream's trainer; None before.
        sent_epoch: the epoch of these weights.
    """

    command: StartRetraining
    best: Callable[[], RemoteCheckpoint]
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
        inputs: the labels that each stream's trainer learns from.
        now_us: returns run time.
        emit: callback for progress and end events.
    """

    def __init__(
        self,
        streams: Mapping[StreamId, StreamActors],
        inputs: RetrainInputs,
        now_us: Callable[[], int],
        emit: Callable[[ev.Event], None],
    ) -> None:
        self._streams, self._inputs, self._now_us, self._emit = streams, inputs, now_us, emit
        self._newest: dict[StreamId, _Remote] = {}

    def bring(
        self, command: StartRetraining, accuracies: Sequence[float], best: Callable[[], RemoteCheckpoint]
    ) -> None:
        """Records progress; see ``coordinator.Exchange.bring``."""
        stream, job = command.stream, command.job
        remote = self._newest.get(stream)
        if remote is None or remote.command.job != job:
            remote = self._newest[stream] = _Remote(command, best)
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

    def send(self, stream: StreamId, job: JobId) -> list[Any]:
        """Sends the best weights to the stream's trainer, unless it has them; returns the Ray reference.

        Empty if the job is not a remote one or has no epoch yet. The call needs no share.
        """
        remote = self._newest.get(stream)
        if remote is None or remote.command.job != job or not remote.accuracies:
            return []
        if remote.best_epoch > remote.sent_epoch:
            best, labels = remote.best(), self._inputs.labels(stream)
            receive = self._streams[stream].retraining.receive
            remote.sent = receive.remote(stream, remote.command, best.weights, best.accuracy, labels)
            remote.sent_epoch = best.epoch
        return [remote.sent]
