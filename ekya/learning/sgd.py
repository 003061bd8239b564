"""How weights are moved: the recipe, and the optimiser that follows it."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

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


class Sgd:
    """Moves the trainable end of a model along the gradients that its weights have."""

    def __init__(self, suffix: Suffix, recipe: SgdRecipe) -> None:
        self._recipe = recipe
        self._named = dict(suffix.named_parameters())
        trunk = [weight for block in suffix.blocks for weight in block.parameters()]
        groups = [{"params": list(suffix.head.parameters()), "base": recipe.head_learning_rate}]
        if trunk:
            groups.append({"params": trunk, "base": recipe.learning_rate})
        # Fused: on a CPU one pass over the weights instead of five, an eighth of a whole step.
        self._optimiser = torch.optim.SGD(
            groups,
            lr=recipe.learning_rate,
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
            fused=True,
        )

    def set_rates(self, batch_size: int, epochs_done: int) -> None:
        """The learning rates of steps of this batch size after so many epochs."""
        scale = (batch_size / 16) ** 0.5
        decay = 1.0 / (1.0 + epochs_done / self._recipe.decay_epochs)
        for group in self._optimiser.param_groups:
            group["lr"] = group["base"] * scale * decay

    def step(self) -> None:
        """One step along the gradients."""
        self._optimiser.step()

    def coasting(self, steps: int) -> dict[str, Tensor]:
        """How far momentum alone moves each weight in so many steps of the rates that are set.

        That is -η (m + m² + … + m^steps) v, with rate η, momentum m, and v what the steps so far have left.
        Empty before the first step.
        """
        kept, momentum = self.momentum(), self._recipe.momentum
        way = sum(momentum**step for step in range(1, steps + 1))
        rates = {weight: group["lr"] for group in self._optimiser.param_groups for weight in group["params"]}
        return {name: kept[name] * (-rates[self._named[name]] * way) for name in kept}

    def momentum(self) -> dict[str, Tensor]:
        """What the steps so far have left, by weight; nothing before the first. Not a copy."""
        state = self._optimiser.state
        return {
            name: state[weight]["momentum_buffer"]
            for name, weight in self._named.items()
            if state[weight].get("momentum_buffer") is not None
        }

    def set_momentum(self, momentum: Mapping[str, Tensor]) -> None:
        """As another optimiser of the same weights left it; those without a name in it begin anew."""
        self._optimiser.state.clear()
        for name, kept in momentum.items():
            weight = self._named[name]
            self._optimiser.state[weight]["momentum_buffer"] = kept.detach().clone().to(weight.device)
