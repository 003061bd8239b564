"""Prepares a stream's retraining from the serving model, its labels and its exemplars."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np

from ekya.core.configs import RetrainConfig
from ekya.models.edge.model import EdgeModel
from ekya.models.edge.precision import training_precision
from ekya.models.training.activation_cache import ActivationCache
from ekya.models.training.exemplars import ExemplarMemory
from ekya.models.training.labelled import Examples
from ekya.models.training.trainer import Compute, PartnerPart, Retraining, RetrainingData
from ekya.pipeline.labels import StreamLabels
from ekya.pipeline.preparation import in_classes, memory_in_classes, outputs_of
from ekya.pipeline.settings import PreparationSettings


def data_of(
    start: EdgeModel,
    labels: StreamLabels,
    memory: ExemplarMemory,
    settings: PreparationSettings,
    window: int,
    partners: Sequence[StreamLabels] = (),
) -> RetrainingData:
    """Returns the data of ``retraining_of`` for the same arguments."""
    fleet = settings.classes
    classes = outputs_of(start, labels, fleet)
    pooled = None if labels.pooled is None else _learnt(labels.pooled, partners)
    measures = all(len(of.validation.examples) for of in partners)
    return RetrainingData(
        in_classes(labels.training.examples, classes, fleet),
        in_classes(labels.validation.examples, classes, fleet),
        classes,
        memory_in_classes(memory, classes, fleet),
        settings.seed + window,
        in_classes(pooled, classes, fleet) if pooled is not None and len(pooled) else None,
        tuple(_part(of, classes, fleet) for of in partners) if measures else (),
    )


def _learnt(pooled: Examples, partners: Sequence[StreamLabels]) -> Examples:
    """Returns the pooled examples but for those that validate on a partner."""
    held_out = {image.tobytes() for of in partners for image in of.validation.examples.images}
    learnt = [row for row, image in enumerate(pooled.images) if image.tobytes() not in held_out]
    return pooled.take(np.array(learnt, np.int64)) if held_out else pooled


def _part(partner: StreamLabels, classes: tuple[str, ...], fleet: tuple[str, ...]) -> PartnerPart:
    validation = partner.validation.examples
    weights = validation.mix_weights(partner.training.examples)
    return PartnerPart(in_classes(validation, classes, fleet), weights)


def retraining_of(
    start: EdgeModel,
    config: RetrainConfig,
    labels: StreamLabels,
    memory: ExemplarMemory,
    settings: PreparationSettings,
    window: int,
    scope: Callable[[], AbstractContextManager[None]] = nullcontext,
    passed: ActivationCache | None = None,
    partners: Sequence[StreamLabels] = (),
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
        partners: labels of the streams that the retrained model may serve as well.
    """
    data = data_of(start, labels, memory, settings, window, partners)
    compute = Compute(settings.device, scope, training_precision(settings.device, scope))
    return Retraining(start, config, data, compute, passed=passed)
