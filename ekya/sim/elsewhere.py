"""Weights that need no share, in the emulated world: really trained, and charged to nobody (paper §6.5)."""

from collections.abc import Callable
from dataclasses import dataclass, field

from ekya.core.commands import StartRetraining
from ekya.core.configs import RetrainConfig
from ekya.core.elsewhere import CachedModel
from ekya.core.events import RetrainFinished, RetrainProgress
from ekya.learning.edge import EdgeModel
from ekya.learning.memory import ExemplarMemory
from ekya.learning.trainer import Retraining
from ekya.sim.training import Checkpoint
from ekya.workers.labels import StreamLabels
from ekya.workers.retraining import retraining_of
from ekya.workers.settings import PreparationSettings


class ArrivingWeights:
    """Weights on their way; what is not here in time is never made.

    Args:
        command: what asked for them. ``elsewhere`` must be set.
        now_us: when.
        bring: makes them.
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
        """A share changes nothing."""

    def delay(self, delay_us: int) -> None:
        """What goes on here delays nothing."""

    def end(self, now_us: int) -> None:
        """They are here: what they were made of is not needed any more."""
        self._bring = None

    def used_gpu_s(self, now_us: int) -> float:
        """Nothing, of the GPUs here."""
        return 0.0

    def finish_step(self, now_us: int) -> list[RetrainProgress | RetrainFinished]:
        """What is told when they are here.

        Raises:
            RuntimeError: they were here before.
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
    """A retraining on other servers, whose weights come home snapshot by snapshot; it is not made before.

    Args:
        command: what asked for it.
        retraining: from the weights that it began with.
    """

    due_us: int | None = None

    def __init__(self, command: StartRetraining, retraining: Retraining) -> None:
        self.stream, self.job, self.config = command.stream, command.job, command.config
        self.window = command.window
        self.best: Checkpoint | None = None
        self._retraining: Retraining | None = retraining
        self._done = 0

    def resize(self, share_milli: int, now_us: int) -> None:
        """A share changes nothing."""

    def delay(self, delay_us: int) -> None:
        """What goes on here delays nothing."""

    def end(self, now_us: int) -> None:
        """Nothing more will come."""
        self._retraining = None

    def used_gpu_s(self, now_us: int) -> float:
        """Nothing, of the GPUs here."""
        return 0.0

    def finish_step(self, now_us: int) -> list[RetrainProgress | RetrainFinished]:
        """Nothing, since no step of it is due here."""
        return []

    def receive(self, epochs: int, now_us: int) -> list[RetrainProgress | RetrainFinished]:
        """Runs it so far, and tells what came: the last of these epochs, or the best, where they end it.

        Of epochs between two snapshots only the best come, and only at the end.

        Raises:
            RuntimeError: nothing more was to come.
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
    """A model of each of a stream's windows, trained on from the one before on that window's labels.

    Attributes:
        config: γ of all of them.
        model: the youngest; at first the base model.
        memory: exemplars of all windows so far.
        models: by the window that they were trained in.
    """

    config: RetrainConfig
    model: EdgeModel
    memory: ExemplarMemory = field(default_factory=ExemplarMemory)
    models: dict[int, EdgeModel] = field(default_factory=dict)

    def keep(
        self, labels: StreamLabels, settings: PreparationSettings, background: int | None
    ) -> CachedModel | None:
        """Trains one on these labels; None where that cannot be done, or was done before."""
        window = labels.window + 1
        if window in self.models or not labels.can_train:
            return None
        start = retraining_of(self.model, self.config, labels, self.memory, settings, window)
        self.model = self.models[window] = trained(start).model
        self.memory = self.memory.update(self.model, labels.training.crops)
        return CachedModel(self.config, window, labels.histogram(len(settings.classes), background))


def trained(retraining: Retraining) -> Checkpoint:
    """The best weights of a whole retraining, of equals the last."""
    retraining.prepare()
    best: Checkpoint | None = None
    while best is None or not retraining.done:
        result = retraining.run_epoch()
        if best is None or result.validation_accuracy >= best.validation_accuracy:
            best = Checkpoint(result.epoch, result.validation_accuracy, retraining.model())
    return best
