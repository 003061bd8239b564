"""One retraining on virtual time: the training is real, the time it takes is counted."""

from dataclasses import dataclass

from ekya.core.events import RetrainFinished, RetrainProgress
from ekya.core.ids import JobId, StreamId
from ekya.core.speed import SpeedCurve
from ekya.core.units import US_PER_S
from ekya.learning.edge import EdgeModel
from ekya.learning.operations import retraining_cost
from ekya.learning.trainer import Retraining
from ekya.workers.costs import CostCard


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """The best weights so far."""

    epoch: int
    validation_accuracy: float
    model: EdgeModel


class EmulatedRetraining:
    """Steps are the preparation and then each epoch; a step is run when its time has come."""

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
        self._retraining = retraining
        self._prepare_gpu_s, self._epoch_gpu_s = card.retraining_gpu_s(retraining_cost(retraining))
        self._speed = speed
        self._left_gpu_s = self._prepare_gpu_s
        self._prepared = False
        self._since_us = now_us
        self._share_milli = share_milli
        self._gpu_s = 0.0
        self._unreported_gpu_s = 0.0
        self.best: Checkpoint | None = None

    @property
    def due_us(self) -> int | None:
        """When the step in progress ends; None while the share is 0."""
        speed = self._speed.speed(self._share_milli)
        if speed == 0.0:
            return None
        return self._since_us + max(round(self._left_gpu_s / speed * US_PER_S), 1)

    def resize(self, share_milli: int, now_us: int) -> None:
        """Another share from ``now_us`` on; what is done of the step stays done."""
        self._work_until(now_us)
        self._share_milli = share_milli

    def delay(self, delay_us: int) -> None:
        """Stands still for a while, as when a checkpoint is taken."""
        self._since_us += delay_us

    def used_gpu_s(self, now_us: int) -> float:
        """GPU-seconds spent since this was last asked."""
        self._work_until(now_us)
        used, self._unreported_gpu_s = self._unreported_gpu_s, 0.0
        return used

    def finish_step(self, now_us: int) -> list[RetrainProgress | RetrainFinished]:
        """Runs the step whose time is up and tells what came of it."""
        self._work_until(now_us)
        if not self._prepared:
            self._prepared = True
            self._retraining.prepare()
            self._left_gpu_s = self._epoch_gpu_s
            return []
        result = self._retraining.run_epoch()
        self._left_gpu_s = self._epoch_gpu_s
        self._gpu_s = self._prepare_gpu_s + result.epoch * self._epoch_gpu_s
        if self.best is None or result.validation_accuracy >= self.best.validation_accuracy:
            self.best = Checkpoint(result.epoch, result.validation_accuracy, self._retraining.model())
        told: list[RetrainProgress | RetrainFinished] = [
            RetrainProgress(
                now_us, self.stream, self.job, result.epoch, result.validation_accuracy, self._gpu_s
            )
        ]
        if self._retraining.done:
            told.append(RetrainFinished(now_us, self.stream, self.job, self._gpu_s))
        return told

    def _work_until(self, now_us: int) -> None:
        passed_us = max(now_us - self._since_us, 0)
        worked = min(self._left_gpu_s, passed_us / US_PER_S * self._speed.speed(self._share_milli))
        self._left_gpu_s -= worked
        self._unreported_gpu_s += worked
        self._since_us = max(self._since_us, now_us)
