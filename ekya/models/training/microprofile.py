"""Measuring half of the micro-profiler: tries a family of γ on a small part of the labels (paper §4.3).

``ekya.planning.profiling`` fits and extrapolates the curve. There are three ways to try a family:

- *On folds*: training the head alone needs the features of each crop once, and an epoch on features costs
  next to nothing. So every object is used for training and for measuring, by cross-validation in ``FOLDS``
  folds with no object on both sides. The validation part has a fifth of a window's labels, so this measures
  on five times as many crops, with less than half of the noise.
- *On a subset*, as in the paper: a few epochs on a tenth of the labels, measured on the validation part.
- *Not at all*: other γ of the stream have shown the level of accuracy before, and these labels show too
  little to tell the families apart. Its cost is counted.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum, auto

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ekya.core.configs import RetrainConfig, crops_in_epoch
from ekya.core.profile import FamilyCurve, Profiler
from ekya.models.edge.model import EdgeModel, clone
from ekya.models.training.activation_cache import ActivationCache, KnownFeatures, features_of
from ekya.models.training.augmentation import versions_of
from ekya.models.training.epochs import steps_in_epoch
from ekya.models.training.goals import Judged, goal_of
from ekya.models.training.label_weights import folds_of_tracks, tried_of, weighed_now
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

INFORMATIVE_CROPS = 100
"""Minimum number of validation crops for a short trial of blocks to be informative."""

INFORMATIVE_OBJECTS = 50
"""Minimum number of labelled objects for a trial of another head to be informative: on fewer, the noise of an
accuracy is larger than what families differ by."""

HEAD_EPOCHS = 6
"""Epochs of a micro-profile of the head alone."""

FOLDS = 3
"""Folds into which the labels are split to measure the head on all of them."""


class Trying(Enum):
    """Way to try a family; see the module's docstring."""

    ON_FOLDS = auto()
    ON_A_SUBSET = auto()
    NOT_AT_ALL = auto()


_EPOCHS = {Trying.ON_FOLDS: HEAD_EPOCHS, Trying.ON_A_SUBSET: SUBSET_EPOCHS, Trying.NOT_AT_ALL: 0}


def way_to_try(
    profiler: Profiler, trainable_blocks: int, validation_crops: int, objects: int, first: bool
) -> Trying:
    """Returns the way to try a family.

    Args:
        profiler: the paper's tries every family on a subset.
        trainable_blocks: of the family.
        validation_crops: in the validation part of the labels.
        objects: in all labels.
        first: True if nothing was tried on these labels before.
    """
    if profiler is Profiler.PAPER:
        return Trying.ON_A_SUBSET
    informative = (
        validation_crops >= INFORMATIVE_CROPS if trainable_blocks else objects >= INFORMATIVE_OBJECTS
    )
    if not (first or informative):
        return Trying.NOT_AT_ALL
    return Trying.ON_A_SUBSET if trainable_blocks else Trying.ON_FOLDS


@dataclass(frozen=True, slots=True)
class _Point:
    """An accuracy, and the number of independent crops behind it; None for the validation part."""

    accuracy: float
    crops: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class MicroProfile:
    """Trial of one family of γ from one model on one window's labels.

    Attributes:
        start: the serving model.
        family: γ whose epochs and data fraction are ignored.
        training, validation: the window's labels, split.
        pooled: older labels or those of other streams, to learn from as well; nothing is measured on them.
        way: how the family is tried.
        exemplars: number of exemplars that a retraining would mix in; they are only counted, not tried.
        classes: outputs of a retrained model.
        background: the class that is no object and is not measured on; None if every crop shows an object.
        seed: of the subset, the folds and the training.
        clock: returns the seconds that a whole GPU would have needed so far for the work inside the scope.
        compute: where it computes.
        passed: cache for the activations of tried crops, for a retraining that follows; None caches nothing.
    """

    start: EdgeModel
    family: RetrainConfig
    way: Trying
    training: Examples
    validation: Examples
    exemplars: int
    classes: tuple[str, ...]
    background: int | None
    seed: int
    clock: Callable[[], float]
    compute: Compute = field(default_factory=Compute)
    passed: ActivationCache | None = None
    pooled: Examples | None = None

    @property
    def epochs(self) -> int:
        """Number of epochs that are tried."""
        return _EPOCHS[self.way]

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
            accuracies=tuple(p.accuracy for p in points),
            epoch_gpu_s=epoch_s,
            prepare_gpu_s=seconds[0],
            validation_crops=points[-1].crops,
        )
        rates = seconds[0] / tried.preparation, epoch_s / tried.epoch
        return self.priced(curve, lambda cost: (rates[0] * cost.preparation, rates[1] * cost.epoch))

    def untried(self, price: Price) -> FamilyCurve:
        """Returns the GPU-seconds of a real retraining, without accuracies; runs nothing."""
        family = self.family
        costs_alone = FamilyCurve(
            family.batch_size, family.head_width, family.trainable_blocks, self.subset_crops, (), 0.0, 0.0
        )
        return self.priced(costs_alone, price)

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
        if self.way is Trying.ON_FOLDS:
            own = max(1, round(len(self._tried_in_folds()) * (FOLDS - 1) / FOLDS))
            return own + len(self._pooled_in_folds())
        return self._own_in_subset + self._pooled_in_subset

    def cost(self) -> RetrainingCost:
        """Returns the counted cost of ``run``, without running it: of preparation and of each epoch."""
        if self.way is not Trying.ON_FOLDS:
            return retraining_cost(self._on_subset())
        every, pooled = len(self._tried_in_folds()), len(self._pooled_in_folds())
        # An own crop trains in all folds but the one that measures it; a pooled one trains in all.
        crops = TrainingCrops(every + pooled, (FOLDS - 1) * every + FOLDS * pooled, every)
        passes = self._training_cost(crops)
        return replace(passes, steps=FOLDS * steps_in_epoch(self.subset_crops, self.family.batch_size))

    def retraining_cost(self) -> RetrainingCost:
        """Returns the counted cost of a real retraining of this family on all labels."""
        fresh = len(self._learnt)
        return self._real_cost(fresh, crops_in_epoch(fresh, self.exemplars), self._passed_of(self._learnt))

    def fixed_cost(self) -> RetrainingCost:
        """Returns the part of ``retraining_cost`` that does not depend on the number of labels used."""
        return self._real_cost(0, 0, 0)

    def _real_cost(self, fresh_crops: int, epoch_crops: int, passed_crops: int) -> RetrainingCost:
        held = len(self.validation)
        prepared, passed = (
            versions_of(self.training) * fresh_crops + self.exemplars + held,
            passed_crops + self._passed_of(self.validation),
        )
        return self._training_cost(TrainingCrops(prepared, epoch_crops, held, passed))

    def _training_cost(self, crops: TrainingCrops) -> RetrainingCost:
        return training_cost(self.family, crops, self.training.side, self.start.architecture)

    def _passed_of(self, examples: Examples) -> int:
        """Returns the number of examples that a retraining need not pass through its frozen blocks again."""
        if self.passed is None:
            return 0
        return int(self.passed.find_cached(self.family.trainable_blocks, examples.images).sum())

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

    def _pooled_in_folds(self) -> NDArray[np.int64]:
        """Returns the positions of the pooled examples, on which every fold trains."""
        return np.zeros(0, np.int64) if self.pooled is None else tried_of(self.pooled)

    def _everything(self) -> Examples:
        return concatenate([self.training, self.validation])

    def _tried_in_folds(self) -> NDArray[np.int64]:
        """Returns the positions of the examples that are trained and measured on."""
        return tried_of(self._everything())

    def _steps(self) -> Iterator[_Point]:
        """Yields the accuracy before training, then after each epoch."""
        if self.way is Trying.ON_FOLDS:
            yield from self._on_folds()
            return
        retraining = self._on_subset()
        yield _Point(retraining.prepare_training())
        if self.passed is not None:
            retraining.share_activations(self.passed)
        while not retraining.done:
            yield _Point(retraining.run_epoch().validation_accuracy)

    def _on_subset(self) -> Retraining:
        pooled = self.pooled
        return Retraining(
            self.start,
            replace(self.family, epochs=self.epochs, data_fraction=1.0),
            RetrainingData(
                random_subset(self.training, self.seed, self._own_in_subset),
                self.validation,
                self.classes,
                seed=self.seed,
                pooled=pooled if pooled is None else random_subset(pooled, self.seed, self._pooled_in_subset),
            ),
            self.compute,
        )

    def _on_folds(self) -> Iterator[_Point]:
        labelled, tried = self._everything(), self._tried_in_folds()
        everything = labelled.select_rows(tried)
        features = self._features_of(everything)
        pooled = None if self.pooled is None else self.pooled.select_rows(self._pooled_in_folds())
        of_pooled = features[:0] if pooled is None else self._features_of(pooled)
        weighed = weighed_now(labelled, tried, self._judged_now(features, everything), self.background)
        weights, objects = weighed.weights, everything.objects_in_each()
        folds = []
        for held in folds_of_tracks(everything.tracks, FOLDS, self.seed):
            trains = np.flatnonzero(~held)
            measures = np.flatnonzero(held & (weights > 0.0))
            votes = float((weights[measures] * objects[measures]).sum())
            # A fold that trains on nothing, or measures nothing that counts, has no accuracy.
            if len(trains) and votes:
                trained_on = torch.cat([features[trains], of_pooled])
                known = KnownFeatures(trained_on, features[measures], weights[measures])
                fold = Retraining(
                    self.start,
                    replace(self.family, epochs=self.epochs, data_fraction=1.0),
                    RetrainingData(
                        everything.select_rows(trains),
                        everything.select_rows(measures),
                        self.classes,
                        seed=self.seed,
                        pooled=pooled,
                    ),
                    self.compute,
                    known=known,
                )
                folds.append((votes, fold))

        def mean(accuracies: list[float]) -> _Point:
            every = [votes for votes, _ in folds]
            return _Point(float(np.average(accuracies, weights=every)), weighed.independent)

        yield mean([fold.prepare_training() for _, fold in folds])
        for _ in range(self.epochs):
            yield mean([fold.run_epoch().validation_accuracy for _, fold in folds])

    def _features_of(self, examples: Examples) -> Tensor:
        features = features_of(self.start, examples, self.compute.device, self.compute.scope)
        if self.passed is not None:
            self.passed.store_activations(0, examples.images, features)
        return features

    @torch.no_grad()
    def _judged_now(self, features: Tensor, examples: Examples) -> Judged:
        """Returns how right the serving model is; its classes come first among the outputs."""
        head = clone(self.start).to(self.compute.device).eval().head
        goal = goal_of(examples, self.classes, self.start.detector, self.compute.device)
        return goal.judge_outputs(head(features))


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
