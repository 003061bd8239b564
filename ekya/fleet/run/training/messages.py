"""Messages to and between the processes of a training."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekya.core.configs import RetrainConfig
from ekya.fleet.run.training.workers import EpochPlan
from ekya.models.training.labelled import Examples
from ekya.models.training.optimizer import Recipe

ALWAYS = -1.0
"""Threshold below every accuracy."""


@dataclass(frozen=True, slots=True)
class LessonPlan:
    """Configuration that every process of a training shares.

    Attributes:
        config: γ; its batch size is that of a step of all workers.
        classes: outputs of the trained model.
        epochs: division of epochs into steps; its seed is that of a new head, too.
        recipe: learning rates and the like.
        distillation_weight: 0 switches distillation off.
        staleness: asynchronous: by how many updates a gradient may be behind.
        foresees: asynchronous: workers get predicted weights, as in ``TrainingTask``.
    """

    config: RetrainConfig
    classes: tuple[str, ...]
    epochs: EpochPlan
    recipe: Recipe
    distillation_weight: float
    staleness: int
    foresees: bool

    def step_crops(self, batch: int) -> int:
        """Returns the batch size for the learning rate: of a common step, or of this worker's own steps."""
        return self.config.batch_size if self.epochs.together else batch


@dataclass(frozen=True, slots=True, eq=False)
class ValidationCrops:
    """Data for measuring accuracy.

    Attributes:
        labelled: the crops.
        weights: (N,) of each crop.
    """

    labelled: Examples
    weights: NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Push:
    """A gradient sent by a worker.

    Attributes:
        gradient: (P,) of the mean loss over the crops; None where the worker holds no crop of a common step.
        loss: that mean.
        crops: number of these crops.
        batch: configured batch size of the worker.
        last: the worker's last one in this epoch.
    """

    gradient: NDArray[np.float32] | None
    loss: float
    crops: int
    batch: int
    last: bool
