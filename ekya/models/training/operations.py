"""Counts the operations of forward passes and epochs, which the emulated world charges.

Operations are counted once, on the modules that the trainer runs, and scale with the number of crops.
Kernels count whole, as they did where the rates of cards were measured; ``trimmed_kernels.py`` makes real
trainings cheaper than that.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch

from ekya.core.configs import RetrainConfig
from ekya.models.edge.architecture_table import DEFAULT_ARCHITECTURE
from ekya.models.edge.footprint import COUNTED_CROPS, shapes_of
from ekya.models.operations_counter import count_operations
from ekya.models.training.epochs import steps_in_epoch
from ekya.models.training.trainer import Retraining


def forward_operations(resolution: int, head_width: int = 0, architecture: str = DEFAULT_ARCHITECTURE) -> int:
    """Returns the operations to classify one crop of this side in pixels."""
    counts = _counts(architecture, head_width, 0, resolution)
    return counts.prefix + counts.suffix


@dataclass(frozen=True, slots=True)
class RetrainingCost:
    """Counted cost of one retraining.

    Attributes:
        preparation: operations once, before the first epoch.
        epoch: operations of each epoch, validation included.
        steps: of SGD in each epoch; each has a cost besides its operations.
    """

    preparation: int
    epoch: int
    steps: int


@dataclass(frozen=True, slots=True)
class TrainingCrops:
    """Numbers of crops that a training passes through its model.

    Attributes:
        prepared: in the preparation: each passes the frozen blocks, and then the end of the start model (for
            distillation) or of the new model (for validation).
        epoch: trained on in an epoch.
        validation: that the accuracy is measured on after each epoch.
    """

    prepared: int
    epoch: int
    validation: int


def training_cost(
    config: RetrainConfig, crops: TrainingCrops, side: int, architecture: str = DEFAULT_ARCHITECTURE
) -> RetrainingCost:
    """Returns the cost of a training with γ on crops of this side in pixels."""
    counts = _counts(architecture, config.head_width, config.trainable_blocks, side)
    return RetrainingCost(
        crops.prepared * forward_operations(side, config.head_width, architecture),
        crops.epoch * counts.suffix_training + crops.validation * counts.suffix,
        steps_in_epoch(crops.epoch, config.batch_size),
    )


def retraining_cost(retraining: Retraining) -> RetrainingCost:
    """Returns the cost of a retraining, which need not be prepared yet."""
    crops = TrainingCrops(retraining.prepared_crops, retraining.epoch_crops, retraining.validation_crops)
    return training_cost(retraining.config, crops, retraining.side, retraining.architecture)


@dataclass(frozen=True, slots=True)
class _Counts:
    """Operations per crop of the parts of a model."""

    prefix: int
    suffix: int
    suffix_training: int


@lru_cache
def _counts(architecture: str, head_width: int, trainable_blocks: int, resolution: int) -> _Counts:
    parts = shapes_of(architecture, head_width, trainable_blocks, resolution, "cpu")
    with count_operations(parts.prefix) as frozen, torch.no_grad():
        activations = parts.prefix(parts.images)
    # The activations need no gradient, so none passes the boundary, as in a training.
    with count_operations(parts.suffix) as end:
        parts.suffix(activations)
    return _Counts(
        frozen.forward // COUNTED_CROPS,
        end.forward // COUNTED_CROPS,
        (end.forward + end.backward) // COUNTED_CROPS,
    )
