"""Retraining on virtual time: the training is real, its duration is computed from a cost card."""

from dataclasses import dataclass

from ekya.core.events import RetrainFinished, RetrainProgress
from ekya.core.speed import SpeedCurve
from ekya.core.units import JobId, StreamId
from ekya.models.edge.model import EdgeModel
from ekya.models.training.operations import retraining_cost
from ekya.models.training.trainer import Retraining
from ekya.pipeline.costs import CostCard
from ekya.simulation.shares import ShareWork


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """Best weights so far."""

    epoch: int
    validation_accuracy: float
    model: EdgeModel


class EmulatedRetraining:
    """A retraining in steps, preparation and then each epoch; a step runs when its time is over."""

    def __init__(
        self,
        stream: StreamId,
        job: JobId,
        window: int,
        retraining: Retraining,
        card: CostCard,
        speed: SpeedCurve,
        now_us: int,
        share_milli: int,
    ) -> None:
        self.stream, self.job, self.window = stream, job, window
        self.config = retraining.config
        self._retraining: Retraining | None = retraining
        self._prepare_gpu_s, self._epoch_gpu_s = card.retraining_gpu_s(retraining_cost(retraining))
        self._work = ShareWork(speed, now_us, share_milli, self._prepare_gpu_s)
        self._prepared = False
        self._gpu_s = 0.0
        self.best: Checkpoint | None = None

    @property
    def due_us(self) -> int | None:
        """End of the current step; None while the share is 0."""
        return self._work.due_us

    def resize(self, share_milli: int, now_us: int) -> None:
        """Sets the share from ``now_us`` on; the finished part of the step stays."""
        self._work.resize(share_milli, now_us)

    def delay(self, delay_us: int) -> None:
        """Pauses the work, for example while a checkpoint is taken."""
        self._work.delay(delay_us)

    def end(self, now_us: int) -> None:
        """Frees the training and keeps only the best weights."""
        self.resize(0, now_us)
        self._retraining = None

    def used_gpu_s(self, now_us: int) -> float:
        """Returns the GPU-seconds spent since the last call."""
        return self._work.used_gpu_s(now_us)

    def finish_step(self, now_us: int) -> list[RetrainProgress | RetrainFinished]:
        """Runs the current step and returns its events.

        Raises:
            RuntimeError: the retraining has ended.
        """
        retraining = self._retraining
        if retraining is None:
            raise RuntimeError("a retraining that has ended takes no step")
        self._work.next_step(self._epoch_gpu_s, now_us)
        if not self._prepared:
            self._prepared = True
            retraining.prepare()
            return []
        result = retraining.run_epoch()
        self._gpu_s = self._prepare_gpu_s + result.epoch * self._epoch_gpu_s
        if self.best is None or result.validation_accuracy >= self.best.validation_accuracy:
            self.best = Checkpoint(result.epoch, result.validation_accuracy, retraining.model())
        told: list[RetrainProgress | RetrainFinished] = [
            RetrainProgress(
                now_us, self.stream, self.job, result.epoch, result.validation_accuracy, self._gpu_s
            )
        ]
        if retraining.done:
            told.append(RetrainFinished(now_us, self.stream, self.job, self._gpu_s))
        return told
