"""Real trainings in steps that are charged to virtual time by a cost card, and the models kept for reuse."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ekya.core.configs import RetrainConfig
from ekya.core.weights import CachedModel
from ekya.models.edge.device_memory import is_out_of_memory
from ekya.models.edge.model import EdgeModel
from ekya.models.training.exemplars import ExemplarMemory
from ekya.models.training.operations import retraining_cost
from ekya.models.training.trainer import Retraining
from ekya.pipeline.costs import CostCard
from ekya.pipeline.labels import StreamLabels
from ekya.pipeline.settings import PreparationSettings
from ekya.pipeline.stream_preparation import retraining_of
from ekya.simulation.retraining import DoesNotFitError, EpochEnd, TrainingStep


def training_steps(retraining: Retraining, card: CostCard) -> Iterator[TrainingStep[EdgeModel]]:
    """Yields the preparation of a retraining and each of its epochs."""
    prepare_gpu_s, epoch_gpu_s = card.retraining_gpu_s(retraining_cost(retraining))

    def run_epoch() -> EpochEnd[EdgeModel]:
        with _fits():
            result = retraining.run_epoch()
        gpu_s = prepare_gpu_s + result.epoch * epoch_gpu_s
        return EpochEnd(result.epoch, result.validation_accuracy, gpu_s, retraining.model)

    def prepare() -> None:
        with _fits():
            retraining.prepare()

    yield TrainingStep(prepare_gpu_s, prepare)
    for _ in range(retraining.config.epochs):
        yield TrainingStep(epoch_gpu_s, run_epoch)


@contextmanager
def _fits() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            raise DoesNotFitError(f"{type(error).__name__}: {error}") from error
        raise


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
    memory: ExemplarMemory
    models: dict[int, EdgeModel] = field(default_factory=dict)

    def keep(
        self, labels: StreamLabels, settings: PreparationSettings, background: int | None
    ) -> CachedModel | None:
        """Trains a model on these labels; None if they do not suffice or the window has one already."""
        window = labels.window + 1
        if window in self.models or not labels.can_train:
            return None
        retraining = retraining_of(self.model, self.config, labels, self.memory, settings, window)
        retraining.prepare()
        best = 0.0
        while not retraining.done:
            result = retraining.run_epoch()
            if result.validation_accuracy >= best:
                best, self.model = result.validation_accuracy, retraining.model()
        self.models[window] = self.model
        self.memory = self.memory.update(self.model, labels.training.examples)
        return CachedModel(self.config, window, labels.histogram(len(settings.classes), background))
