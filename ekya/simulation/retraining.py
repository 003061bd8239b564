"""A retraining on virtual time. The world says what its steps cost and give; everything else is common."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from ekya.core.commands import StartRetraining
from ekya.core.events import RetrainFinished, RetrainProgress
from ekya.core.speed import SpeedCurve
from ekya.simulation.shares import ShareWork

ModelT = TypeVar("ModelT")
"""Weights of a model: real ones, or those of a trace, which are only named."""


@dataclass(frozen=True, slots=True, eq=False)
class EpochEnd(Generic[ModelT]):
    """Result of an epoch.

    Attributes:
        epoch: from 1.
        validation_accuracy: of its weights.
        gpu_s: GPU-seconds since the training began.
        take_model: returns its weights; valid until the next step.
    """

    epoch: int
    validation_accuracy: float
    gpu_s: float
    take_model: Callable[[], ModelT]

    def is_as_good_as(self, other: "Checkpoint[ModelT] | None") -> bool:
        """Returns whether its weights replace others."""
        return other is None or self.validation_accuracy >= other.validation_accuracy

    def checkpoint(self) -> "Checkpoint[ModelT]":
        """Returns its weights, to be kept."""
        return Checkpoint(self.epoch, self.validation_accuracy, self.take_model())


class DoesNotFitError(Exception):
    """The memory of the device does not suffice for a step of a training."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainingStep(Generic[ModelT]):
    """An epoch, or the preparation before the first.

    Attributes:
        gpu_s: cost of the step.
        run: executes it; returns None for a preparation. May raise ``DoesNotFitError``.
    """

    gpu_s: float
    run: Callable[[], EpochEnd[ModelT] | None]


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint(Generic[ModelT]):
    """Best weights so far, of equals the last."""

    epoch: int
    validation_accuracy: float
    model: ModelT


class VirtualRetraining(Generic[ModelT]):
    """A retraining, from its command until the next one of its stream.

    There are three kinds. One with a share here runs a step whenever ``ShareWork`` says that it is over. The
    weights of one in the cloud, or of a kept model, arrive at a time; only then its steps are run, all at
    once (paper §6.5). The weights of one on another server come in snapshots, each with ``receive``.

    Args:
        command: the command that started it.
        steps: of the training, in order. Each is run when its result is due.
        speed: of a retraining with a share here.
        now_us: time of the command.
        by_snapshots: the weights come with ``receive``.
    """

    def __init__(
        self,
        command: StartRetraining,
        steps: Iterator[TrainingStep[ModelT]],
        speed: SpeedCurve,
        now_us: int,
        by_snapshots: bool = False,
    ) -> None:
        elsewhere = command.elsewhere
        trained_in = None if elsewhere is None else elsewhere.trained_in
        self.stream, self.job, self.config = command.stream, command.job, command.config
        self.window = command.window if trained_in is None else trained_in
        self.by_snapshots = by_snapshots
        self.best: Checkpoint[ModelT] | None = None
        self._steps = steps
        self._next = next(steps, None)
        self._epoch = 0
        self._work: ShareWork | None = None
        self._arrives_us: int | None = None
        if elsewhere is None and not by_snapshots and self._next is not None:
            self._work = ShareWork(speed, now_us, command.share_milli, self._next.gpu_s)
        elif elsewhere is not None and not by_snapshots:
            self._arrives_us = max(elsewhere.arrives_us, now_us)

    @property
    def is_local(self) -> bool:
        """True for a retraining with a share here."""
        return self._work is not None

    @property
    def speed_alone(self) -> float:
        """Speed of the share here, as if nothing else ran; 0 elsewhere, and after its end."""
        return 0.0 if self._work is None or self._next is None else self._work.speed_alone

    @property
    def due_us(self) -> int | None:
        """Time of the next result; None without one, or while the share is 0."""
        if self._next is None:
            return None
        return self._arrives_us if self._work is None else self._work.due_us

    def resize(self, share_milli: int, now_us: int) -> None:
        """Sets the share here from ``now_us`` on; the finished part of the step stays."""
        if self._work is not None:
            self._work.resize(share_milli, now_us)

    def set_pace(self, pace: float, now_us: int) -> None:
        """Sets the speed here from ``now_us`` on, relative to that of the share alone."""
        if self._work is not None:
            self._work.set_pace(pace, now_us)

    def delay(self, delay_us: int) -> None:
        """Pauses the work here, for example while a checkpoint is taken."""
        if self._work is not None:
            self._work.delay(delay_us)

    def used_gpu_s(self, now_us: int) -> float:
        """Returns the GPU-seconds spent here since the last call."""
        return 0.0 if self._work is None else self._work.used_gpu_s(now_us)

    def stop_training(self, now_us: int) -> None:
        """Frees the training and keeps only the best weights."""
        self.resize(0, now_us)
        self._steps, self._next = iter(()), None

    def finish_step(self, now_us: int) -> list[RetrainProgress | RetrainFinished]:
        """Runs what is due, a step or all steps of weights that arrive, and returns its events.

        Raises:
            RuntimeError: the retraining has ended.
        """
        if self._work is None:
            arrived = self._run_until(self.config.epochs, keep_best=True)
            return [] if arrived is None else self._events(now_us, 1, arrived.validation_accuracy, 0.0)
        result = self._run_next()
        self._work.next_step(0.0 if self._next is None else self._next.gpu_s, now_us)
        if result is None:
            return []
        if result.is_as_good_as(self.best):
            self.best = result.checkpoint()
        return self._events(now_us, result.epoch, result.validation_accuracy, result.gpu_s)

    def receive(self, epochs: int, now_us: int) -> list[RetrainProgress | RetrainFinished]:
        """Trains up to ``epochs`` and returns the events of the snapshot.

        A snapshot holds the last of these epochs; the final one holds the best since the previous snapshot.
        """
        came = self._run_until(epochs, keep_best=epochs == self.config.epochs)
        return [] if came is None else self._events(now_us, came.epoch, came.validation_accuracy, 0.0)

    def _run_next(self) -> EpochEnd[ModelT] | None:
        if self._next is None:
            raise RuntimeError("a retraining that has ended takes no step")
        step, self._next = self._next, next(self._steps, None)
        result = step.run()
        self._epoch = self._epoch if result is None else result.epoch
        return result

    def _run_until(self, epochs: int, keep_best: bool) -> Checkpoint[ModelT] | None:
        """Runs the epochs up to this one; returns the best weights of them, or the last."""
        came: Checkpoint[ModelT] | None = None
        while self._next is not None and self._epoch < epochs:
            result = self._run_next()
            if result is not None and (not keep_best or result.is_as_good_as(came)):
                came = result.checkpoint()
        if came is not None and (
            self.best is None or came.validation_accuracy >= self.best.validation_accuracy
        ):
            self.best = came
        return came

    def _events(
        self, now_us: int, epoch: int, accuracy: float, gpu_s: float
    ) -> list[RetrainProgress | RetrainFinished]:
        progress = RetrainProgress(now_us, self.stream, self.job, epoch, accuracy, gpu_s)
        if self._next is not None:
            return [progress]
        return [progress, RetrainFinished(now_us, self.stream, self.job, gpu_s)]
