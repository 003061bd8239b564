"""Counts the operations of forward passes and epochs, which the emulated world charges.

An operation is a multiplication or an addition, so a multiply-add counts twice. Operations are counted
once, on the modules that the trainer runs, and scale with the number of crops.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ekya.core.configs import RetrainConfig
from ekya.models.edge.cuts import DEFAULT_ARCHITECTURE
from ekya.models.edge.model import build_edge_model, split_at
from ekya.models.training.epochs import steps_in_epoch
from ekya.models.training.trainer import Retraining

if TYPE_CHECKING:
    from torch.utils.flop_counter import FlopCounterMode

_COUNTED_CROPS = 2
_COUNTED_CLASSES = 6


def forward_operations(resolution: int, head_width: int = 0, architecture: str = DEFAULT_ARCHITECTURE) -> int:
    """Returns the operations to classify one crop of this side in pixels."""
    counts = _counts(architecture, head_width, 0, resolution)
    return counts.prefix + counts.suffix


def preparation_operations(
    config: RetrainConfig,
    crops: int,
    resolution: int,
    architecture: str = DEFAULT_ARCHITECTURE,
    passed_crops: int = 0,
) -> int:
    """Returns the operations of ``Retraining.prepare`` for its ``prepared_crops``.

    Each crop passes the frozen blocks once, unless it has before (``passed_crops``), and then the end of the
    start model (for distillation) or of the new model (for validation).
    """
    counts = _counts(architecture, config.head_width, config.trainable_blocks, resolution)
    whole = crops * forward_operations(resolution, config.head_width, architecture)
    return whole - passed_crops * counts.prefix


def epoch_operations(
    config: RetrainConfig,
    training_crops: int,
    validation_crops: int,
    resolution: int,
    architecture: str = DEFAULT_ARCHITECTURE,
) -> int:
    """Returns the operations of ``Retraining.run_epoch`` for its ``epoch_crops`` and ``validation_crops``."""
    counts = _counts(architecture, config.head_width, config.trainable_blocks, resolution)
    return training_crops * counts.suffix_training + validation_crops * counts.suffix


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


def retraining_cost(retraining: Retraining) -> RetrainingCost:
    """Returns the cost of a retraining, which need not be prepared yet."""
    config, side, kind = retraining.config, retraining.side, retraining.architecture
    return RetrainingCost(
        preparation_operations(config, retraining.prepared_crops, side, kind, retraining.passed_crops),
        epoch_operations(config, retraining.epoch_crops, retraining.validation_crops, side, kind),
        steps_in_epoch(retraining.epoch_crops, config.batch_size),
    )


@dataclass(frozen=True, slots=True)
class _Counts:
    """Operations per crop of the parts of a model."""

    prefix: int
    suffix: int
    suffix_training: int


@lru_cache
def _counts(architecture: str, head_width: int, trainable_blocks: int, resolution: int) -> _Counts:
    names = tuple(str(index) for index in range(_COUNTED_CLASSES))
    with torch.device("meta"):  # counting needs shapes only
        prefix, suffix = split_at(build_edge_model(names, head_width, 0, architecture), trainable_blocks)
        images = torch.zeros(_COUNTED_CROPS, 3, resolution, resolution)
        labels = torch.zeros(_COUNTED_CROPS, dtype=torch.int64)
    prefix.requires_grad_(False)

    def frozen() -> Tensor:
        with torch.no_grad():
            activations: Tensor = prefix(images)
            return activations

    activations = frozen()

    def forward() -> Tensor:
        with torch.no_grad():
            logits: Tensor = suffix(activations)
            return logits

    def training() -> None:
        torch.autograd.backward(cross_entropy(suffix(activations), labels))

    return _Counts(*(_count(run) for run in (frozen, forward, training)))


def _count(run: Callable[[], object]) -> int:
    with operations_counter() as counter:
        run()
    return int(counter.get_total_flops()) // _COUNTED_CROPS


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
