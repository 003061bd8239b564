"""Retrainings that other servers do, at home: what has come of them, and who serves it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ekya.core import events as ev
from ekya.core.commands import StartRetraining
from ekya.core.ids import JobId, StreamId
from ekya.runtime.fleet_actors import StreamActors
from ekya.runtime.mailbox import RunClock
from ekya.runtime.material import Materials


@dataclass(frozen=True, slots=True, eq=False)
class Brought:
    """Weights that others have trained.

    Attributes:
        weights: a checkpoint.
        accuracy: of these on the validation crops.
        epoch: after which.
    """

    weights: bytes
    accuracy: float
    epoch: int


@dataclass(slots=True, eq=False)
class _Coming:
    """One of them.

    Attributes:
        best: makes the best weights so far.
        accuracies: after each epoch that was told of.
        adopted: Ray's reference to the call that gave weights to the stream's trainer; None before.
        adopted_epoch: which these were.
    """

    command: StartRetraining
    best: Callable[[], Brought]
    accuracies: tuple[float, ...] = ()
    adopted: Any = None
    adopted_epoch: int = 0

    @property
    def best_epoch(self) -> int:
        """Of equals the last; 0 before the first."""
        return max(enumerate(self.accuracies, 1), key=lambda one: (one[1], one[0]), default=(0, 0.0))[0]


class BroughtWeights:
    """The newest of each stream; the one before it is over.

    Args:
        streams: their actors.
        materials: say what the stream's trainer learns from.
        clock: run time.
        tell: is told of epochs and ends.
    """

    def __init__(
        self,
        streams: Mapping[StreamId, StreamActors],
        materials: Materials,
        clock: RunClock,
        tell: Callable[[ev.Event], None],
    ) -> None:
        self._streams, self._materials, self._clock, self._tell = streams, materials, clock, tell
        self._coming: dict[StreamId, _Coming] = {}

    def bring(
        self, command: StartRetraining, accuracies: Sequence[float], best: Callable[[], Brought]
    ) -> None:
        """As of ``above.Exchange``."""
        stream, job = command.stream, command.job
        coming = self._coming.get(stream)
        if coming is None or coming.command.job != job:
            coming = self._coming[stream] = _Coming(command, best)
        coming.best = best
        now_us = max(self._clock.now_us(), 0)
        for epoch in range(len(coming.accuracies) + 1, len(accuracies) + 1):
            accuracy = accuracies[epoch - 1]
            self._tell(ev.RetrainProgress(now_us, stream, job, epoch, accuracy, 0.0))
        # Its processes may end later than its last epoch: the end is told once.
        ends = len(coming.accuracies) < command.config.epochs <= len(accuracies)
        coming.accuracies = tuple(accuracies)
        if ends:
            self._tell(ev.RetrainFinished(now_us, stream, job, 0.0))

    def adopt(self, stream: StreamId, job: JobId) -> list[Any]:
        """Lets the stream's trainer have the best weights, if it has not; Ray's reference to that call.

        There is none where the job is none of these, or nothing has come of it. No share is needed for it.
        """
        coming = self._coming.get(stream)
        if coming is None or coming.command.job != job or not coming.accuracies:
            return []
        if coming.best_epoch > coming.adopted_epoch:
            best, labels = coming.best(), self._materials.labels(stream)
            adopt = self._streams[stream].retraining.adopt
            coming.adopted = adopt.remote(coming.command, best.weights, best.accuracy, labels)
            coming.adopted_epoch = best.epoch
        return [coming.adopted]
