"""How weights are moved: the recipe, and the optimiser that follows it."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

from ekya.learning.cutting import Suffix


@dataclass(frozen=True, slots=True)
class SgdRecipe:
    """How the weights are moved. The defaults were found on drifting windows of about 80 crops.

    The learning rate does not depend on how many epochs are planned, so the first epochs of a long
    retraining are those of a short one: this is what lets a micro-profile of a few epochs be
    extrapolated to every length (paper §4.3).

    Attributes:
        learning_rate: of the trunk's blocks at a batch of 16; scaled by the root of the batch size.
        head_learning_rate: of the head, likewise.
        momentum, weight_decay: of SGD.
        batch_statistics: normalise trained blocks by their batches, and learn the statistics from
            them, as fresh weights need. Otherwise by the start model's statistics, as frozen blocks
            always do: the crops of a window show few objects, and statistics of few objects cost
            more accuracy than they bring.
        decay_epochs: when so many epochs are done the rates are half, after twice as many a third.
    """

    learning_rate: float = 0.005
    head_learning_rate: float = 0.015
    momentum: float = 0.9
    weight_decay: float = 5e-4
    decay_epochs: float = 8.0
    batch_statistics: bool = False


@dataclass(slots=True, eq=False)
class _Group:
    """Weights, by name, that move at one rate: ``base`` at a batch of 16 in the first epoch, now ``rate``."""

    weights: Mapping[str, nn.Parameter]
    base: float
    rate: float


class Sgd:
    """Moves the trainable end of a model along the gradients that its weights have.

    What torch's optimiser does around its step brings torch's compiler, a second in each process that trains.
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
        """The learning rates of steps of this batch size after so many epochs."""
        scale = (batch_size / 16) ** 0.5
        decay = 1.0 / (1.0 + epochs_done / self._recipe.decay_epochs)
        for group in self._groups:
            group.rate = group.base * scale * decay

    @torch.no_grad()
    def step(self) -> None:
        """One step along the gradients."""
        for group in self._groups:
            moved = {
                name: (weight, weight.grad)
                for name, weight in group.weights.items()
                if weight.grad is not None
            }
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

    def coasting(self, steps: int) -> dict[str, Tensor]:
        """How far momentum alone moves each weight in so many steps of the rates that are set.

        That is -η (m + m² + … + m^steps) v, with rate η, momentum m, and v what the steps so far have left.
        Empty before the first step.
        """
        kept, momentum = self.momentum(), self._recipe.momentum
        way = sum(momentum**step for step in range(1, steps + 1))
        return {
            name: kept[name] * (-group.rate * way)
            for group in self._groups
            for name in group.weights
            if name in kept
        }

    def momentum(self) -> dict[str, Tensor]:
        """What the steps so far have left, by weight; nothing before the first. Not a copy."""
        return dict(self._kept)

    def set_momentum(self, momentum: Mapping[str, Tensor]) -> None:
        """As another optimiser of the same weights left it; those without a name in it begin anew."""
        weights = {name: weight for group in self._groups for name, weight in group.weights.items()}
        self._kept = {name: kept.detach().clone().to(weights[name].device) for name, kept in momentum.items()}
