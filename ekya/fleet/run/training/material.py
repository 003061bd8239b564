"""All that a training is made of, in one place: its crops by number, and what its processes have to know."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ekya.fleet.policy.assignment import Assignment
from ekya.fleet.policy.names import NodeName, SiteName
from ekya.fleet.run.training.dealing import Lying, workers_of
from ekya.fleet.run.training.messages import LessonPlan, Validation
from ekya.fleet.run.training.protocol import TrainingTask
from ekya.fleet.run.training.workers import EpochPlan, Positions
from ekya.learning.labelled import LabelledCrops, class_mix_weights, concatenate
from ekya.learning.trainer import places_of_tracks, usable_exemplars


@dataclass(frozen=True, slots=True, eq=False)
class Material:
    """A task whose crops have numbers: fresh ones from 0 on, exemplars behind them.

    Attributes:
        task: what it is.
        crops: all that train.
        origins: node where each of these lies.
        fresh: how many of them are no exemplars.
        validation: what accuracy is measured on.
    """

    task: TrainingTask
    crops: LabelledCrops
    origins: tuple[NodeName, ...]
    fresh: int
    validation: Validation

    @classmethod
    def of(cls, task: TrainingTask) -> "Material":
        """What a retraining on one node would be made of, with the same draws.

        Raises:
            ValueError: there are no training crops, or the recipe normalises by batches, which workers would
                have to agree on.
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
        weights = class_mix_weights(everything.classes, task.validation.classes)
        return cls(
            task,
            concatenate([everything.take(taken), replay]),
            tuple(origins),
            len(taken),
            Validation(task.validation, weights),
        )

    def lying(self, sites: Mapping[NodeName, SiteName]) -> Lying:
        """For whoever deals the crops."""
        task = self.task
        fresh = self.origins[: self.fresh]
        return Lying(fresh, len(self.origins) - self.fresh, sites, task.seed, task.config.batch_size)

    def plan(self, assignment: Assignment) -> LessonPlan:
        """What all processes have to agree on under this assignment."""
        task = self.task
        together = task.mode == "synchronous"
        # What a node's workers have in their steps is together the step of all.
        batch = sum(part.batch * len(workers_of(part)) for part in assignment.parts)
        config = replace(task.config, batch_size=batch) if together and batch else task.config
        return LessonPlan(
            config,
            task.classes,
            task.seed,
            task.recipe,
            task.distillation_weight,
            together,
            task.staleness,
            task.foresees,
        )

    def epochs(self, plan: LessonPlan) -> EpochPlan:
        """How epochs are cut."""
        exemplars = len(self.origins) - self.fresh
        return EpochPlan(plan.together, self.fresh, exemplars, plan.config.batch_size, plan.seed)

    def sent(self, positions: Positions) -> dict[NodeName, int]:
        """Bytes of these crops with their labels, by the node where they lie."""
        counts: dict[NodeName, int] = {}
        each = crop_bytes(self.crops) // max(1, len(self.crops))
        for position in positions:
            origin = self.origins[position]
            counts[origin] = counts.get(origin, 0) + each
        return counts


def crop_bytes(crops: LabelledCrops) -> int:
    """Of pictures and what is known of them."""
    return crops.crops.nbytes + crops.classes.nbytes + crops.tracks.nbytes + crops.t_us.nbytes
