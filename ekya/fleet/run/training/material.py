"""Contents of a training: its numbered crops, the configuration of its processes, and their messages."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ekya.core.configs import RetrainConfig
from ekya.fleet.policy.assignment import JobAssignment
from ekya.fleet.policy.places import NodeName, SiteName
from ekya.fleet.run.training.dealing import Lying, workers_of
from ekya.fleet.run.training.protocol import TrainingTask
from ekya.fleet.run.training.workers import EpochPlan, Positions
from ekya.models.training.labelled import Examples, concatenate
from ekya.models.training.optimizer import Recipe
from ekya.models.training.trainer import places_of_tracks, usable_exemplars

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
        staleness: asynchronous: by how many updates a gradient may be behind.
        foresees: asynchronous: workers get predicted weights, as in ``TrainingTask``.
    """

    config: RetrainConfig
    classes: tuple[str, ...]
    epochs: EpochPlan
    recipe: Recipe
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


@dataclass(frozen=True, slots=True, eq=False)
class Material:
    """A task with numbered crops: fresh ones from 0 on, exemplars after them.

    Attributes:
        task: of the training.
        crops: all training crops.
        origins: node of each of these.
        fresh: number of crops that are not exemplars.
        validation: crops and weights for measuring accuracy.
    """

    task: TrainingTask
    crops: Examples
    origins: tuple[NodeName, ...]
    fresh: int
    validation: ValidationCrops

    @classmethod
    def from_task(cls, task: TrainingTask) -> "Material":
        """Makes the material of a task, with the same random draws as a retraining on one node.

        Raises:
            ValueError: there are no training crops, or the recipe normalises by batch statistics, which
                workers would have to share.
        """
        if task.recipe.batch_statistics:
            raise ValueError("workers normalise by the start model's statistics, not by those of batches")
        nodes = sorted(task.training)
        if not sum(len(task.training[node]) for node in nodes):
            raise ValueError("a retraining needs at least one training crop")
        everything = concatenate([task.training[node] for node in nodes])
        lie = np.repeat(np.arange(len(nodes)), [len(task.training[node]) for node in nodes])
        taken = places_of_tracks(everything.tracks, task.config.data_fraction, task.seed)
        replay = usable_exemplars(task.memory, task.validation)
        origins = [nodes[place] for place in lie[taken]] + [task.home] * len(replay)
        weights = task.validation.mix_weights(everything)
        return cls(
            task,
            concatenate([everything.select_rows(taken), replay]),
            tuple(origins),
            len(taken),
            ValidationCrops(task.validation, weights),
        )

    def crops_by_node(self, sites: Mapping[NodeName, SiteName]) -> Lying:
        """Returns the location of the crops, for dealing them."""
        task = self.task
        fresh = self.origins[: self.fresh]
        return Lying(fresh, len(self.origins) - self.fresh, sites, task.seed, task.config.batch_size)

    def lesson_plan(self, assignment: JobAssignment) -> LessonPlan:
        """Returns the configuration that all processes share under this assignment."""
        task = self.task
        together = task.mode == "synchronous"
        # A common step holds the batches of all workers of all nodes.
        batch = sum(part.batch * len(workers_of(part)) for part in assignment.parts)
        exemplars = len(self.origins) - self.fresh
        config = replace(task.config, batch_size=batch) if together and batch else task.config
        return LessonPlan(
            config,
            task.classes,
            EpochPlan(together, self.fresh, exemplars, config.batch_size, task.seed),
            task.recipe,
            task.staleness,
            task.foresees,
        )

    def sent(self, positions: Positions) -> dict[NodeName, int]:
        """Returns the bytes of these crops with their labels, by node of origin."""
        counts: dict[NodeName, int] = {}
        each = self.crops.nbytes // max(1, len(self.crops))
        for position in positions:
            origin = self.origins[position]
            counts[origin] = counts.get(origin, 0) + each
        return counts
