"""Counts the operations of forward passes and epochs, which the emulated world charges.

An operation is a multiplication or an addition, so a multiply-add counts twice. Operations are counted
once, on the modules that the trainer runs, and scale with the number of crops. Kernels count whole, as they
did where the rates of cards were measured; ``trimmed_kernels.py`` makes real trainings cheaper than that.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

import torch

from ekya.core.configs import RetrainConfig
from ekya.models.edge.architecture_table import DEFAULT_ARCHITECTURE
from ekya.models.edge.footprint import COUNTED_CROPS, shapes_of
from ekya.models.training.epochs import steps_in_epoch
from ekya.models.training.trainer import Retraining

if TYPE_CHECKING:
    from torch.utils.flop_counter import FlopCounterMode


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
        passed: of the prepared ones, those that have passed the frozen blocks before.
    """

    prepared: int
    epoch: int
    validation: int
    passed: int = 0


def training_cost(
    config: RetrainConfig, crops: TrainingCrops, side: int, architecture: str = DEFAULT_ARCHITECTURE
) -> RetrainingCost:
    """Returns the cost of a training with γ on crops of this side in pixels."""
    counts = _counts(architecture, config.head_width, config.trainable_blocks, side)
    whole = crops.prepared * forward_operations(side, config.head_width, architecture)
    return RetrainingCost(
        whole - crops.passed * counts.prefix,
        crops.epoch * counts.suffix_training + crops.validation * counts.suffix,
        steps_in_epoch(crops.epoch, config.batch_size),
    )


def retraining_cost(retraining: Retraining) -> RetrainingCost:
    """Returns the cost of a retraining, which need not be prepared yet."""
    crops = TrainingCrops(
        retraining.prepared_crops,
        retraining.epoch_crops,
        retraining.validation_crops,
        retraining.passed_crops,
    )
    return training_cost(retraining.config, crops, retraining.side, retraining.architecture)


@dataclass(frozen=True, slots=True)
class _Counts:
    """Operations per crop of the parts of a model."""

    prefix: int
    suffix: int
    suffix_training: int


@lru_cache
def _counts(architecture: str, head_width: int, trainable_blocks: int, resolution: int) -> _Counts:
    parts = shapes_of(architecture, head_width, trainable_blocks, resolution)
    with operations_counter() as frozen, torch.no_grad():
        activations = parts.prefix(parts.images)
    with operations_counter() as forward, torch.no_grad():
        parts.suffix(activations)
    # The activations need no gradient, so none passes the boundary, as in a training.
    with operations_counter() as training:
        torch.autograd.backward(parts.loss(activations))
    return _Counts(*(int(of.get_total_flops()) // COUNTED_CROPS for of in (frozen, forward, training)))


def operations_counter() -> "FlopCounterMode":
    """Returns torch's operations counter, corrected for the gradients of grouped convolutions.

    Torch counts these as if every output channel depended on every input channel, which is hundreds of times
    too much where each depends on one.
    """
    ours: dict[object, Callable[..., int]] = {torch.ops.aten.convolution_backward: _convolution_backward}
    from torch.utils.flop_counter import FlopCounterMode

    return FlopCounterMode(display=False, custom_mapping=ours)


def _convolution_backward(
    out_gradient: torch.Size,
    _inputs: torch.Size,
    kernel: torch.Size,
    _bias: object,
    _stride: object,
    _padding: object,
    _dilation: object,
    _transposed: bool,
    _output_padding: object,
    _groups: int,
    wanted: tuple[bool, bool, bool],
    **_: object,
) -> int:
    """Returns the operations of a convolution's gradients: one pass for its inputs, one for its kernel.

    A kernel's second dimension is the channels of one group, so the number of groups is not needed.
    """
    one_pass = 2 * out_gradient[0] * prod(out_gradient[2:]) * prod(kernel)
    return one_pass * (wanted[0] + wanted[1])
