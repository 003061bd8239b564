"""Tracks remote retrainings on the home server: their progress, and their weights for the local trainer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ekya.core import events as ev
from ekya.core.commands import StartRetraining
from ekya.core.units import JobId, StreamId
from ekya.runtime.fleet_actors import StreamActors
from ekya.runtime.mailbox import RunClock
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
class _Coming:
    """One remote retraining.

    Attributes:
        best: returns the best weights so far.
        accuracies: after each epoch reported so far.
        adopted: Ray's reference to the call that gave weights to the stream's trainer; None before.
        adopted_epoch: the epoch of these weights.
    """

    command: StartRetraining
    best: Callable[[], RemoteCheckpoint]
    accuracies: tuple[float, ...] = ()
    adopted: Any = None
    adopted_epoch: int = 0

    @property
    def best_epoch(self) -> int:
        """The latest epoch with the highest accuracy; 0 before the first."""
        return max(enumerate(self.accuracies, 1), key=lambda one: (one[1], one[0]), default=(0, 0.0))[0]


class RemoteRetrainings:
    """Holds the newest remote retraining of each stream; the one before it is over.

    Args:
        streams: actors of the streams.
        materials: the labels that each stream's trainer learns from.
        clock: run time.
        tell: callback for progress and end events.
    """

    def __init__(
        self,
        streams: Mapping[StreamId, StreamActors],
        materials: RetrainInputs,
        clock: RunClock,
        tell: Callable[[ev.Event], None],
    ) -> None:
        self._streams, self._materials, self._clock, self._tell = streams, materials, clock, tell
        self._coming: dict[StreamId, _Coming] = {}

    def bring(
        self, command: StartRetraining, accuracies: Sequence[float], best: Callable[[], RemoteCheckpoint]
    ) -> None:
        """Records progress; see ``above.Exchange.bring``."""
        stream, job = command.stream, command.job
        coming = self._coming.get(stream)
        if coming is None or coming.command.job != job:
            coming = self._coming[stream] = _Coming(command, best)
        coming.best = best
        now_us = max(self._clock.now_us(), 0)
        for epoch in range(len(coming.accuracies) + 1, len(accuracies) + 1):
            accuracy = accuracies[epoch - 1]
            self._tell(ev.RetrainProgress(now_us, stream, job, epoch, accuracy, 0.0))
        # Its processes may end after its last epoch, so the end is reported only once.
        ends = len(coming.accuracies) < command.config.epochs <= len(accuracies)
        coming.accuracies = tuple(accuracies)
        if ends:
            self._tell(ev.RetrainFinished(now_us, stream, job, 0.0))

    def adopt(self, stream: StreamId, job: JobId) -> list[Any]:
        """Gives the stream's trainer the best weights, unless it has them; returns the Ray reference.

        Empty if the job is not a remote one or has no epoch yet. The call needs no share.
        """
        coming = self._coming.get(stream)
        if coming is None or coming.command.job != job or not coming.accuracies:
            return []
        if coming.best_epoch > coming.adopted_epoch:
            best, labels = coming.best(), self._materials.labels(stream)
            receive = self._streams[stream].retraining.receive
            coming.adopted = receive.remote(stream, coming.command, best.weights, best.accuracy, labels)
            coming.adopted_epoch = best.epoch
        return [coming.adopted]
