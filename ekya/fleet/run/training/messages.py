"""What a training's processes are told, and what they tell each other."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ekya.core.configs import RetrainConfig
from ekya.fleet.run.training.workers import WorkerId
from ekya.learning.labelled import LabelledCrops
from ekya.learning.sgd import SgdRecipe

ALWAYS = -1.0
"""Every accuracy is above it."""


@dataclass(frozen=True, slots=True)
class LessonPlan:
    """What every process of a training has to agree on.

    Attributes:
        config: γ; its batch size is that of a step of all workers.
        classes: outputs of the trained model.
        seed: of a new head, and of the order.
        recipe: learning rates and the like.
        distillation_weight: 0 switches distillation off.
        together: whether a step is one of all workers.
        staleness: otherwise, by how many updates a gradient may be behind.
        foresees: otherwise, whether workers are given the weights as they will be, as of ``TrainingTask``.
    """

    config: RetrainConfig
    classes: tuple[str, ...]
    seed: int
    recipe: SgdRecipe
    distillation_weight: float
    together: bool
    staleness: int
    foresees: bool

    def step_crops(self, batch: int) -> int:
        """The batch size that learning rates are of: of all workers' step, or of this worker's own."""
        return self.config.batch_size if self.together else batch


@dataclass(frozen=True, slots=True, eq=False)
class Validation:
    """What accuracy is measured on.

    Attributes:
        labelled: the crops.
        weights: (N,) how much each counts.
    """

    labelled: LabelledCrops
    weights: NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Push:
    """A gradient on its way.

    Attributes:
        gradient: (P,) of the mean loss over the crops; None where a worker has none of a common step's.
        loss: that mean.
        crops: how many they were.
        batch: crops in the worker's steps, by its orders.
        last: whether it was the worker's last one in this epoch.
    """

    gradient: NDArray[np.float32] | None
    loss: float
    crops: int
    batch: int
    last: bool


class Exchange(Protocol):
    """The parameter server as a worker reaches it; as of ``ParameterServer``."""

    def pull(self, token: object, worker: WorkerId) -> NDArray[np.float32] | None:
        """The weights."""

    def push(self, token: object, worker: WorkerId, push: Push) -> NDArray[np.float32] | None:
        """A gradient for the weights that come of it."""

    def leave(self, token: object, worker: WorkerId) -> None:
        """Nothing to do."""


@dataclass(frozen=True, slots=True)
class EpochWork:
    """What a worker did in an epoch, whether it could end it or not.

    Attributes:
        steps, crops: batches, and crops in them.
        pushed, pulled: bytes.
        compute_s, update_s: of wall time, as of ``NodeWork``.
    """

    steps: int = 0
    crops: int = 0
    pushed: int = 0
    pulled: int = 0
    compute_s: float = 0.0
    update_s: float = 0.0


Timer = Callable[[], float]
"""Seconds that pass."""
