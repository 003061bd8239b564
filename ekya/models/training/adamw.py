"""AdamW for retrainings of detectors: its hyperparameters and the optimiser."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from ekya.models.edge.model import Suffix

_AVERAGE, _SQUARE, _STEPS = "average.", "square.", "steps."


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
        """Sets the learning rate for steps of this batch size after this number of epochs."""
        self._scale = (batch_size / 8) ** 0.5 / (1.0 + epochs_done / self._recipe.decay_epochs)

    @torch.no_grad()
    def step(self) -> None:
        """Takes one step along the gradients."""
        moved = {name: weight for name, weight in self._weights.items() if weight.grad is not None}
        if not moved:
            return
        for name, weight in moved.items():
            if _STEPS + name not in self._kept:
                self._kept[_AVERAGE + name] = torch.zeros_like(weight)
                self._kept[_SQUARE + name] = torch.zeros_like(weight)
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

    def coasting(self, steps: int) -> dict[str, Tensor]:
        """Returns nothing: how far later steps go depends on gradients that are not known."""
        return {}

    def momentum(self) -> dict[str, Tensor]:
        """Returns the state by name; empty before the first step. Not copies."""
        return dict(self._kept)

    def set_momentum(self, momentum: Mapping[str, Tensor]) -> None:
        """Sets the state to that of another optimiser; weights without one start anew."""
        self._kept = {
            name: kept.detach().clone().to(self._weights[name.partition(".")[2]].device)
            for name, kept in momentum.items()
        }
