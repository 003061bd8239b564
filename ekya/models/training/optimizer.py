"""Optimisers of retrainings and their hyperparameters: SGD for classifiers, AdamW for detectors."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from ekya.models.edge.architecture_table import Task, task_of
from ekya.models.edge.model import Suffix

_AVERAGE, _SQUARE, _STEPS = "average.", "square.", "steps."


@dataclass(frozen=True, slots=True)
class SgdRecipe:
    """Hyperparameters of SGD. The defaults were found on drifting windows of about 80 crops.

    The learning rate does not depend on the planned number of epochs, so the first epochs of a long
    retraining are those of a short one, and a micro-profile of a few epochs can be extrapolated to every
    length (paper §4.3).

    Attributes:
        learning_rate: of the trunk's blocks at a batch size of 16; scaled by the root of the batch size.
        head_learning_rate: of the head, likewise.
        momentum, weight_decay: of SGD.
        batch_statistics: normalise trained blocks by the statistics of their batches and update the running
            ones, as fresh weights need. Otherwise use the start model's statistics, as frozen blocks always
            do: the crops of a window show few objects, and statistics of few objects cost more accuracy than
            they bring.
        decay_epochs: after this number of epochs the rates are half, after twice as many a third.
    """

    learning_rate: float = 0.005
    head_learning_rate: float = 0.015
    momentum: float = 0.9
    weight_decay: float = 5e-4
    decay_epochs: float = 8.0
    batch_statistics: bool = False


@dataclass(slots=True, eq=False)
class _Group:
    """Weights, by name, of one learning rate: ``base`` at batch size 16 in epoch 1, ``rate`` now."""

    weights: Mapping[str, nn.Parameter]
    base: float
    rate: float


class Sgd:
    """Updates the trainable end of a model from the gradients of its weights.

    Calls torch's functional SGD: what torch's optimiser does around its step imports torch's compiler, which
    takes a second in each process that trains.
    """

    def __init__(self, suffix: Suffix, recipe: SgdRecipe) -> None:
        self._recipe = recipe
        trunk = dict(suffix.blocks.named_parameters(prefix="blocks"))
        head = dict(suffix.head.named_parameters(prefix="head"))
        self._groups = [
            _Group(weights, base, recipe.learning_rate)
            for weights, base in ((trunk, recipe.learning_rate), (head, recipe.head_learning_rate))
        ]
        self._kept: dict[str, Tensor] = {}

    def set_rates(self, batch_size: int, epochs_done: int) -> None:
        scale = (batch_size / 16) ** 0.5
        decay = 1.0 / (1.0 + epochs_done / self._recipe.decay_epochs)
        for group in self._groups:
            group.rate = group.base * scale * decay

    @torch.no_grad()
    def take_step(self) -> None:
        for group in self._groups:
            moved = {
                name: (weight, weight.grad)
                for name, weight in group.weights.items()
                if weight.grad is not None
            }
            # In the first step torch puts new buffers into this list; without momentum it is empty.
            kept = [self._kept.get(name) for name in moved] if self._recipe.momentum else []
            # Fused: on a CPU one pass over the weights instead of five, an eighth of a whole step.
            sgd(
                [weight for weight, _ in moved.values()],
                [gradient for _, gradient in moved.values()],
                kept,
                fused=True,
                weight_decay=self._recipe.weight_decay,
                momentum=self._recipe.momentum,
                lr=group.rate,
                dampening=0.0,
                nesterov=False,
                maximize=False,
            )
            self._kept |= {name: left for name, left in zip(moved, kept, strict=False) if left is not None}

    def momentum(self) -> dict[str, Tensor]:
        return dict(self._kept)

    def set_momentum(self, momentum: Mapping[str, Tensor]) -> None:
        weights = {name: weight for group in self._groups for name, weight in group.weights.items()}
        self._kept = {name: _restored(kept, weights[name]) for name, kept in momentum.items()}


@dataclass(frozen=True, slots=True)
class AdamWRecipe:
    """Hyperparameters of AdamW. The defaults were found on 25 labelled frames of street video.

    The loss of a detector has steep steps, objects that are suddenly found, at which SGD with momentum leaves
    the weights that it began with. As with SGD the rate does not depend on the planned number of epochs.

    Attributes:
        learning_rate: of blocks and heads at a batch size of 8; scaled by the root of the batch size.
        weight_decay: of AdamW.
        decay_epochs: after this number of epochs the rate is half, after twice as many a third.
        batch_statistics: as in ``SgdRecipe``.
    """

    learning_rate: float = 5e-4
    weight_decay: float = 0.01
    decay_epochs: float = 40.0
    batch_statistics: bool = False


class AdamW:
    """Updates the trainable end of a model from the gradients of its weights, as ``Sgd`` does."""

    def __init__(self, suffix: Suffix, recipe: AdamWRecipe) -> None:
        self._recipe = recipe
        self._weights = dict(suffix.named_parameters())
        self._scale = 1.0
        self._kept: dict[str, Tensor] = {}

    def set_rates(self, batch_size: int, epochs_done: int) -> None:
        self._scale = (batch_size / 8) ** 0.5 / (1.0 + epochs_done / self._recipe.decay_epochs)

    @torch.no_grad()
    def take_step(self) -> None:
        moved = {name: weight for name, weight in self._weights.items() if weight.grad is not None}
        if not moved:
            return
        for name, weight in moved.items():
            if _STEPS + name not in self._kept:
                # In the layout of the weight; see ``_restored``.
                self._kept[_AVERAGE + name] = torch.zeros_like(weight)
                self._kept[_SQUARE + name] = torch.zeros_like(weight)
                # Fused kernels want the count of steps on the weights' device.
                self._kept[_STEPS + name] = torch.zeros((), device=weight.device)
        adamw(
            list(moved.values()),
            [weight.grad for weight in moved.values() if weight.grad is not None],
            [self._kept[_AVERAGE + name] for name in moved],
            [self._kept[_SQUARE + name] for name in moved],
            [],
            [self._kept[_STEPS + name] for name in moved],
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=self._scale * self._recipe.learning_rate,
            weight_decay=self._recipe.weight_decay,
            eps=1e-8,
            maximize=False,
        )

    def momentum(self) -> dict[str, Tensor]:
        return dict(self._kept)

    def set_momentum(self, momentum: Mapping[str, Tensor]) -> None:
        # The name of a weight follows the first dot, after ``average``, ``square`` or ``steps``.
        self._kept = {
            name: _restored(kept, self._weights[name.partition(".")[2]]) for name, kept in momentum.items()
        }


def _restored(kept: Tensor, weight: Tensor) -> Tensor:
    """Returns a copy, since steps change momentum in place and a snapshot may be restored again."""
    if kept.shape != weight.shape:
        return kept.detach().clone().to(weight.device)
    # In the layout of the weight: a fused step pairs elements by their place in memory, not by their index.
    return torch.empty_like(weight).copy_(kept)


Recipe = SgdRecipe | AdamWRecipe


class Optimizer(Protocol):
    """Interface: updates the trainable end of a model from the gradients of its weights."""

    def set_rates(self, batch_size: int, epochs_done: int) -> None:
        """Sets the learning rates for steps of this batch size after this number of epochs."""

    def take_step(self) -> None:
        """Takes one step along the gradients."""

    def momentum(self) -> dict[str, Tensor]:
        """Returns the state by name; empty before the first step. Not copies."""

    def set_momentum(self, momentum: Mapping[str, Tensor]) -> None:
        """Sets the state to that of another optimiser; weights without one start anew."""


def recipe_of(architecture: str) -> Recipe:
    """Returns the hyperparameters with which a run trains an edge model."""
    return AdamWRecipe() if task_of(architecture) is Task.DETECT else SgdRecipe()


def optimizer_of(suffix: Suffix, recipe: Recipe) -> Optimizer:
    """Returns the optimiser of the trainable end of a model."""
    return AdamW(suffix, recipe) if isinstance(recipe, AdamWRecipe) else Sgd(suffix, recipe)
