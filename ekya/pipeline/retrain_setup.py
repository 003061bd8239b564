"""Prepares a stream's retraining from the serving model, its labels and its exemplars."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from ekya.core.configs import RetrainConfig
from ekya.models.edge.model import EdgeModel
from ekya.models.training.activation_cache import ActivationCache
from ekya.models.training.exemplars import ExemplarMemory
from ekya.models.training.trainer import Compute, Retraining, RetrainingData, training_precision
from ekya.pipeline.labels import StreamLabels
from ekya.pipeline.settings import PreparationSettings
from ekya.pipeline.stream_preparation import in_classes, memory_in_classes, outputs_of


def data_of(
    start: EdgeModel,
    labels: StreamLabels,
    memory: ExemplarMemory,
    settings: PreparationSettings,
    window: int,
) -> RetrainingData:
    """Returns the data of ``retraining_of`` for the same arguments."""
    fleet = settings.classes
    classes = outputs_of(start, labels, fleet)
    pooled = labels.pooled
    return RetrainingData(
        in_classes(labels.training.examples, classes, fleet),
        in_classes(labels.validation.examples, classes, fleet),
        classes,
        memory_in_classes(memory, classes, fleet),
        settings.seed + window,
        in_classes(pooled, classes, fleet) if pooled is not None and len(pooled) else None,
    )


def retraining_of(
    start: EdgeModel,
    config: RetrainConfig,
    labels: StreamLabels,
    memory: ExemplarMemory,
    settings: PreparationSettings,
    window: int,
    scope: Callable[[], AbstractContextManager[None]] = nullcontext,
    passed: ActivationCache | None = None,
) -> Retraining:
    """Returns the retraining that every world runs; the same arguments train the same weights.

    Args:
        start: the model that serves.
        config: γ.
        labels: of the window before; their classes index the fleet's.
        memory: exemplars of earlier windows.
        settings: of the stream.
        window: in which it runs.
        scope: context of every batch.
        passed: the micro-profiler's forward passes of the same model; None if there are none.
    """
    data = data_of(start, labels, memory, settings, window)
    compute = Compute(settings.device, scope, training_precision(settings.device, scope))
    return Retraining(start, config, data, compute, passed=passed)
