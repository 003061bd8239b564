"""Measuring half of the paper's micro-profiler: tries a family of γ on a small part of the labels (paper
§4.3).

A few epochs run on a tenth of the labels, and each is measured on the validation part.
``ekya.planning.profiling`` fits and extrapolates the curve.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from ekya.core.configs import RetrainConfig, crops_in_epoch
from ekya.core.profile import FamilyCurve
from ekya.models.edge.model import EdgeModel
from ekya.models.training.augmentation import versions_of
from ekya.models.training.labelled import E, Examples, concatenate
from ekya.models.training.operations import (
    RetrainingCost,
    TrainingCrops,
    retraining_cost,
    training_cost,
)
from ekya.models.training.trainer import Compute, Retraining, RetrainingData

Price = Callable[[RetrainingCost], tuple[float, float]]
"""Maps a cost to the GPU-seconds of a retraining's preparation, and of each of its epochs."""

SUBSET_FRACTION = 0.1
"""Fraction of the window's labels in the subset (paper §4.3: 5-10%)."""

SUBSET_MIN_CROPS = 16
"""Minimum number of crops in the subset, if there are as many: one batch."""

SUBSET_EPOCHS = 5
"""Epochs on a subset (paper §6.4)."""


@dataclass(frozen=True, slots=True, eq=False)
class MicroProfile:
    """Trial of one family of γ from one model on one window's labels.

    Attributes:
        start: the serving model.
        family: γ whose epochs and data fraction are ignored.
        training, validation: the window's labels, split.
        pooled: older labels or those of other streams, to learn from as well; nothing is measured on them.
        exemplars: number of exemplars that a retraining would mix in; they are only counted, not tried.
        classes: outputs of a retrained model.
        seed: of the subset and the training.
        clock: returns the seconds that a whole GPU would have needed so far for the work inside the scope.
        compute: where it computes.
    """

    start: EdgeModel
    family: RetrainConfig
    training: Examples
    validation: Examples
    exemplars: int
    classes: tuple[str, ...]
    seed: int
    clock: Callable[[], float]
    compute: Compute = field(default_factory=Compute)
    pooled: Examples | None = None

    def run(self, progress: Callable[[int], bool] = lambda _: True) -> FamilyCurve:
        """Try the family.

        The curve has fewer accuracies if the trial was stopped, and its ``epoch_gpu_s`` is 0.0 if no epoch
        ran.

        Args:
            progress: called after the preparation (0) and after each epoch (1, 2, …), so that the caller can
                charge for it; False stops the trial.
        """
        began = self.clock()
        points, seconds = [], []
        for done, point in enumerate(self._steps()):
            points.append(point)
            seconds.append(self.clock() - began)
            if not progress(done):
                break
            began = self.clock()
        tried = self.cost()
        epoch_s = float(np.mean(seconds[1:])) if len(seconds) > 1 else 0.0
        curve = FamilyCurve(
            batch_size=self.family.batch_size,
            head_width=self.family.head_width,
            trainable_blocks=self.family.trainable_blocks,
            subset_crops=self.subset_crops,
            accuracies=tuple(points),
            epoch_gpu_s=epoch_s,
            prepare_gpu_s=seconds[0],
        )
        rates = seconds[0] / tried.preparation, epoch_s / tried.epoch
        return self.priced(curve, lambda cost: (rates[0] * cost.preparation, rates[1] * cost.epoch))

    def priced(self, curve: FamilyCurve, price: Price) -> FamilyCurve:
        """Returns the curve with the GPU-seconds of a real retraining.

        Args:
            curve: of this trial.
            price: converts a counted cost to GPU-seconds.
        """
        every, fixed = price(self.retraining_cost()), price(self.fixed_cost())
        part = self.subset_crops / len(self._learnt)
        return replace(
            curve,
            prepare_gpu_s=part * (every[0] - fixed[0]),
            epoch_gpu_s=part * (every[1] - fixed[1]),
            fixed_prepare_gpu_s=fixed[0],
            fixed_epoch_gpu_s=fixed[1],
        )

    @property
    def subset_crops(self) -> int:
        """Number of crops in one epoch of the trial: the unit of work of its curve."""
        return self._own_in_subset + self._pooled_in_subset

    def cost(self) -> RetrainingCost:
        """Returns the counted cost of ``run``, without running it: of preparation and of each epoch."""
        return retraining_cost(self._on_subset())

    def retraining_cost(self) -> RetrainingCost:
        """Returns the counted cost of a real retraining of this family on all labels."""
        fresh = len(self._learnt)
        return self._real_cost(fresh, crops_in_epoch(fresh, self.exemplars))

    def fixed_cost(self) -> RetrainingCost:
        """Returns the part of ``retraining_cost`` that does not depend on the number of labels used."""
        return self._real_cost(0, 0)

    def _real_cost(self, fresh_crops: int, epoch_crops: int) -> RetrainingCost:
        held = len(self.validation)
        prepared = versions_of(self.training) * fresh_crops + self.exemplars + held
        crops = TrainingCrops(prepared, epoch_crops, held)
        return training_cost(self.family, crops, self.training.side, self.start.architecture)

    @property
    def _learnt(self) -> Examples:
        return self.training if self.pooled is None else concatenate([self.training, self.pooled])

    @property
    def _own_in_subset(self) -> int:
        return min(len(self.training), subset_size(len(self.training) + len(self.validation)))

    @property
    def _pooled_in_subset(self) -> int:
        """The same part of the pooled examples as of the own ones."""
        if self.pooled is None:
            return 0
        return round(len(self.pooled) * self._own_in_subset / len(self.training))

    def _steps(self) -> Iterator[float]:
        """Yields the accuracy before training, then after each epoch."""
        retraining = self._on_subset()
        yield retraining.prepare_training()
        while not retraining.done:
            yield retraining.run_epoch().validation_accuracy

    def _on_subset(self) -> Retraining:
        pooled = self.pooled
        return Retraining(
            self.start,
            replace(self.family, epochs=SUBSET_EPOCHS, data_fraction=1.0),
            RetrainingData(
                random_subset(self.training, self.seed, self._own_in_subset),
                self.validation,
                self.classes,
                seed=self.seed,
                pooled=pooled if pooled is None else random_subset(pooled, self.seed, self._pooled_in_subset),
            ),
            self.compute,
        )


def subset_size(labelled_crops: int) -> int:
    """Returns the number of crops in a subset of a window's labels."""
    return max(SUBSET_MIN_CROPS, round(SUBSET_FRACTION * labelled_crops))


def random_subset(training: E, seed: int, crops: int) -> E:
    """Returns a uniformly random subset, which the paper found most indicative (§4.3), in its order.

    Args:
        training: crops to draw from.
        seed: of the choice.
        crops: size of the subset; all crops if there are no more.
    """
    if crops >= len(training):
        return training
    chosen = np.random.default_rng((seed, crops)).choice(len(training), crops, replace=False)
    return training.select_rows(np.sort(chosen))
