"""Optimisers of retrainings: SGD for classifiers, AdamW for detectors."""

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from ekya.models.edge.architecture_table import Task, task_of
from ekya.models.edge.model import Suffix
from ekya.models.training.adamw import AdamW, AdamWRecipe
from ekya.models.training.sgd import Sgd, SgdRecipe

Recipe = SgdRecipe | AdamWRecipe


class Optimizer(Protocol):
    """Interface: updates the trainable end of a model from the gradients of its weights."""

    def set_rates(self, batch_size: int, epochs_done: int) -> None:
        """Sets the learning rates for steps of this batch size after this number of epochs."""

    def step(self) -> None:
        """Takes one step along the gradients."""

    def coasting(self, steps: int) -> dict[str, Tensor]:
        """Returns how far each weight will move in this number of steps, as far as it is known."""

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
