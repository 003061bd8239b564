"""Retrainings without a local share, in the emulated world: really trained, but not charged (paper §6.5)."""

from collections.abc import Callable
from dataclasses import dataclass, field

from ekya.core.commands import StartRetraining
from ekya.core.configs import RetrainConfig
from ekya.core.events import RetrainFinished, RetrainProgress
from ekya.core.weights import CachedModel
from ekya.models.edge.model import EdgeModel
from ekya.models.training.exemplars import ExemplarMemory
from ekya.models.training.trainer import Retraining
from ekya.pipeline.labels import StreamLabels
from ekya.pipeline.retrain_setup import retraining_of
from ekya.pipeline.settings import PreparationSettings
from ekya.simulation.emulated.training import Checkpoint


class ArrivingWeights:
    """Weights that are on their way; they are computed only when they arrive.

    Args:
        command: the command that requested them. ``elsewhere`` must be set.
        now_us: time of the command.
        bring: computes them.
    """

    def __init__(self, command: StartRetraining, now_us: int, bring: Callable[[], Checkpoint]) -> None:
        if command.elsewhere is None:
            raise ValueError("a retraining on the GPUs here arrives nowhere")
        trained_in = command.elsewhere.trained_in
        self.stream, self.job, self.config = command.stream, command.job, command.config
        self.window = command.window if trained_in is None else trained_in
        self.due_us: int | None = max(command.elsewhere.arrives_us, now_us)
        self.best: Checkpoint | None = None
        self._bring: Callable[[], Checkpoint] | None = bring

    def resize(self, share_milli: int, now_us: int) -> None:
        """Does nothing: the retraining holds no share."""

    def delay(self, delay_us: int) -> None:
        """Does nothing: local work does not delay it."""

    def end(self, now_us: int) -> None:
        """Frees the training data after the weights have arrived."""
        self._bring = None

    def used_gpu_s(self, now_us: int) -> float:
        """Returns 0: no local GPU is used."""
        return 0.0

    def finish_step(self, now_us: int) -> list[RetrainProgress | RetrainFinished]:
        """Computes the weights on their arrival and returns the events.

        Raises:
            RuntimeError: they have arrived before.
        """
        if self._bring is None:
            raise RuntimeError("weights arrive once")
        self.due_us = None
        self.best = self._bring()
        return [
            RetrainProgress(now_us, self.stream, self.job, 1, self.best.validation_accuracy, 0.0),
            RetrainFinished(now_us, self.stream, self.job, 0.0),
        ]


class ComingHome:
    """A remote retraining whose weights come home snapshot by snapshot; computed when they arrive.

    Args:
        command: the command that started it.
        retraining: the training, from the weights that served at the command.
    """

    due_us: int | None = None

    def __init__(self, command: StartRetraining, retraining: Retraining) -> None:
        self.stream, self.job, self.config = command.stream, command.job, command.config
        self.window = command.window
        self.best: Checkpoint | None = None
        self._retraining: Retraining | None = retraining
        self._done = 0

    def resize(self, share_milli: int, now_us: int) -> None:
        """Does nothing: the retraining holds no share."""

    def delay(self, delay_us: int) -> None:
        """Does nothing: local work does not delay it."""

    def end(self, now_us: int) -> None:
        """Frees the training; no more weights can arrive."""
        self._retraining = None

    def used_gpu_s(self, now_us: int) -> float:
        """Returns 0: no local GPU is used."""
        return 0.0

    def finish_step(self, now_us: int) -> list[RetrainProgress | RetrainFinished]:
        """Returns no events, since no step is due locally."""
        return []

    def receive(self, epochs: int, now_us: int) -> list[RetrainProgress | RetrainFinished]:
        """Trains up to ``epochs`` and returns the events of the snapshot.

        A snapshot holds the last of these epochs; the final one holds the best since the previous snapshot.

        Raises:
            RuntimeError: the retraining has ended.
        """
        retraining = self._retraining
        if retraining is None:
            raise RuntimeError("a retraining that has ended brings no more weights")
        if self._done == 0:
            retraining.prepare()
        came: Checkpoint | None = None
        ends = epochs == self.config.epochs
        while self._done < epochs:
            result = retraining.run_epoch()
            self._done = result.epoch
            accuracy = result.validation_accuracy
            if came is None or not ends or accuracy >= came.validation_accuracy:
                came = Checkpoint(result.epoch, accuracy, retraining.model())
        if came is None:
            return []
        if self.best is None or came.validation_accuracy >= self.best.validation_accuracy:
            self.best = came
        told: list[RetrainProgress | RetrainFinished] = [
            RetrainProgress(now_us, self.stream, self.job, came.epoch, came.validation_accuracy, 0.0)
        ]
        if ends:
            told.append(RetrainFinished(now_us, self.stream, self.job, 0.0))
        return told


@dataclass(slots=True, eq=False)
class KeptModels:
    """A model per window of a stream, each trained from the previous one on that window's labels.

    Attributes:
        config: γ of all of them.
        model: the newest; at first the base model.
        memory: exemplars of all windows so far.
        models: by the window in which they were trained.
    """

    config: RetrainConfig
    model: EdgeModel
    memory: ExemplarMemory = field(default_factory=ExemplarMemory)
    models: dict[int, EdgeModel] = field(default_factory=dict)

    def keep(
        self, labels: StreamLabels, settings: PreparationSettings, background: int | None
    ) -> CachedModel | None:
        """Trains a model on these labels; None if they do not suffice or the window has one already."""
        window = labels.window + 1
        if window in self.models or not labels.can_train:
            return None
        start = retraining_of(self.model, self.config, labels, self.memory, settings, window)
        self.model = self.models[window] = trained(start).model
        self.memory = self.memory.update(self.model, labels.training.crops)
        return CachedModel(self.config, window, labels.histogram(len(settings.classes), background))


def trained(retraining: Retraining) -> Checkpoint:
    """Runs a whole retraining and returns its best weights; of equals the last."""
    retraining.prepare()
    best: Checkpoint | None = None
    while best is None or not retraining.done:
        result = retraining.run_epoch()
        if best is None or result.validation_accuracy >= best.validation_accuracy:
            best = Checkpoint(result.epoch, result.validation_accuracy, retraining.model())
    return best
