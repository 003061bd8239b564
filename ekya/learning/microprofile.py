"""The measuring half of the micro-profiler: a family of γ is tried on little (paper §4.3).

Fitting the curve and extrapolating it is done in ``ekya.profiling``. Three ways to try:

- *On folds*: the head alone needs the features of each crop once, and an epoch on features costs next to
  nothing. So every label is tried on and measured on: trained in ``FOLDS`` parts, each time on the others,
  with no object on both sides. Four fifths of a window's labels train, so this measures on five
  times as many crops as the validation part has: what is left of its noise is less than half.
- *On a subset*, as in the paper: a few epochs on a tenth of the labels, measured on the validation part.
- *For its time*: one batch. The other γ of the stream have shown its level by then, and what a short
  trial of blocks shows on a small validation part is nothing but noise.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

from ekya.core.configs import RetrainConfig
from ekya.core.profile import FamilyCurve, Profiler
from ekya.learning.edge import EdgeModel
from ekya.learning.labelled import LabelledCrops, concatenate
from ekya.learning.operations import (
    RetrainingCost,
    epoch_operations,
    forward_operations,
    preparation_operations,
    retraining_cost,
)
from ekya.learning.trainer import KnownFeatures, Retraining, crops_in_epoch, features_of, steps_in_epoch

Price = Callable[[RetrainingCost], tuple[float, float]]
"""GPU-seconds of a retraining's preparation, and of each of its epochs."""

SUBSET_FRACTION = 0.1
"""Part of the window's labels that is tried on (paper §4.3: 5-10%)."""

SUBSET_MIN_CROPS = 16
"""At least so many crops are tried on, where there are as many: one batch."""

SUBSET_EPOCHS = 5
"""Epochs on a subset (paper §6.4)."""

TELLING_CROPS = 100
"""A validation part of so many crops shows what a short trial of blocks gave."""

HEAD_EPOCHS = 8
"""Epochs of a micro-profile of the head alone."""

FOLDS = 3
"""Parts into which the labels are cut to measure the head on all of them."""


class Trying(Enum):
    """A way to try a family; see above."""

    ON_FOLDS = auto()
    ON_A_SUBSET = auto()
    FOR_ITS_TIME = auto()


_EPOCHS = {Trying.ON_FOLDS: HEAD_EPOCHS, Trying.ON_A_SUBSET: SUBSET_EPOCHS, Trying.FOR_ITS_TIME: 1}


def way_to_try(profiler: Profiler, trainable_blocks: int, validation_crops: int, first: bool) -> Trying:
    """How a family is tried.

    Args:
        profiler: which; the paper's tries every family on a subset.
        trainable_blocks: of the family.
        validation_crops: in the validation part of the labels.
        first: whether nothing was tried on these labels before.
    """
    if profiler is Profiler.PAPER:
        return Trying.ON_A_SUBSET
    if not trainable_blocks:
        return Trying.ON_FOLDS
    return Trying.ON_A_SUBSET if first or validation_crops >= TELLING_CROPS else Trying.FOR_ITS_TIME


@dataclass(frozen=True, slots=True, eq=False)
class MicroProfile:
    """What to try: one family of γ from one model on one window's labels.

    Attributes:
        start: the model that serves.
        family: γ whose epochs and data fraction are ignored.
        training, validation: the window's labels, parted.
        way: how.
        exemplars: that a retraining would mix in; they are not tried, and only counted.
        classes: outputs of a retrained model.
        background: which of them is no object and is not measured on; None where every crop shows one.
        seed: of the subset, the folds and the training.
        clock: GPU-seconds that the caller has used so far; on a CPU, those of its thread.
        device, scope: as of ``Retraining``.
    """

    start: EdgeModel
    family: RetrainConfig
    way: Trying
    training: LabelledCrops
    validation: LabelledCrops
    exemplars: int
    classes: tuple[str, ...]
    background: int | None
    seed: int
    clock: Callable[[], float]
    device: str = "cpu"
    scope: Callable[[], AbstractContextManager[None]] = nullcontext

    @property
    def epochs(self) -> int:
        """How many are tried."""
        return _EPOCHS[self.way]

    def run(self, progress: Callable[[int], bool] = lambda _: True) -> FamilyCurve:
        """Try the family.

        The curve's accuracies are fewer where it was stopped, and its ``epoch_gpu_s`` is 0.0 if no
        epoch ran.

        Args:
            progress: called after the preparation (0) and after each epoch (1, 2, …), so that the
                caller can charge for it; False stops here.
        """
        began = self.clock()
        accuracies, seconds = [], []
        for done, accuracy in enumerate(self._steps()):
            accuracies.append(accuracy)
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
            accuracies=() if self.way is Trying.FOR_ITS_TIME else tuple(accuracies),
            epoch_gpu_s=epoch_s,
            prepare_gpu_s=seconds[0],
            validation_crops=self._independent_crops() if self.way is Trying.ON_FOLDS else None,
        )
        rates = seconds[0] / tried.preparation, epoch_s / tried.epoch
        return self.priced(curve, lambda cost: (rates[0] * cost.preparation, rates[1] * cost.epoch))

    def priced(self, curve: FamilyCurve, price: Price) -> FamilyCurve:
        """The curve with the GPU-seconds of a real retraining.

        Args:
            curve: of this trial.
            price: GPU-seconds of what is counted before the first epoch, and of that of one.
        """
        every, fixed = price(self.retraining_cost()), price(self.fixed_cost())
        part = self.subset_crops / len(self.training)
        return replace(
            curve,
            prepare_gpu_s=part * (every[0] - fixed[0]),
            epoch_gpu_s=part * (every[1] - fixed[1]),
            fixed_prepare_gpu_s=fixed[0],
            fixed_epoch_gpu_s=fixed[1],
        )

    @property
    def subset_crops(self) -> int:
        """Crops that one epoch of the trial sees: the unit of work of its curve."""
        if self.way is Trying.ON_FOLDS:
            return max(1, round(self._labelled_crops * (FOLDS - 1) / FOLDS))
        wanted = SUBSET_MIN_CROPS if self.way is Trying.FOR_ITS_TIME else subset_size(self._labelled_crops)
        return min(len(self.training), wanted)

    def cost(self) -> RetrainingCost:
        """What is counted of what ``run`` will do, without doing it: once, and in each of ``epochs``."""
        if self.way is not Trying.ON_FOLDS:
            return retraining_cost(self._on_subset())
        family, side, kind = self.family, self.training.side, self.start.architecture
        every = self._labelled_crops
        return RetrainingCost(
            preparation=every * forward_operations(side, family.head_width, kind),
            epoch=epoch_operations(family, (FOLDS - 1) * every, every, side, kind),
            steps=FOLDS * steps_in_epoch(self.subset_crops, family.batch_size),
        )

    def retraining_cost(self) -> RetrainingCost:
        """What is counted of a real retraining of this family on all labels."""
        fresh = len(self.training)
        return self._retraining_of(fresh, crops_in_epoch(fresh, self.exemplars))

    def fixed_cost(self) -> RetrainingCost:
        """The part of them that does not depend on how many of the labels are used."""
        return self._retraining_of(0, 0)

    def _retraining_of(self, fresh_crops: int, epoch_crops: int) -> RetrainingCost:
        held, side, kind = len(self.validation), self.training.side, self.start.architecture
        prepared = fresh_crops + self.exemplars + held
        return RetrainingCost(
            preparation_operations(self.family, prepared, side, kind),
            epoch_operations(self.family, epoch_crops, held, side, kind),
            steps_in_epoch(epoch_crops, self.family.batch_size),
        )

    @property
    def _labelled_crops(self) -> int:
        return len(self.training) + len(self.validation)

    def _crop_weights(self) -> NDArray[np.float64]:
        """How much each crop counts in a measurement on all of them; they sum to 1."""
        everything = concatenate([self.training, self.validation])
        return weights_by_object(everything.classes, everything.tracks, self.background)

    def _independent_crops(self) -> int:
        """Crops that are measured on, as far as each tells something of its own: 1 / Σ (object's weight)²."""
        everything = concatenate([self.training, self.validation])
        _, of = np.unique(everything.tracks, return_inverse=True)
        return round(1.0 / float((np.bincount(of, weights=self._crop_weights()) ** 2).sum()))

    def _steps(self) -> Iterator[float]:
        """Accuracy before training, then one an epoch."""
        if self.way is Trying.ON_FOLDS:
            yield from self._on_folds()
            return
        retraining = self._on_subset()
        yield retraining.prepare()
        while not retraining.done:
            yield retraining.run_epoch().validation_accuracy

    def _on_subset(self) -> Retraining:
        measured = self.validation.take(np.arange(0)) if self.way is Trying.FOR_ITS_TIME else self.validation
        return Retraining(
            self.start,
            replace(self.family, epochs=self.epochs, data_fraction=1.0),
            random_subset(self.training, self.seed, self.subset_crops),
            measured,
            memory=None,
            classes=self.classes,
            seed=self.seed,
            device=self.device,
            scope=self.scope,
        )

    def _on_folds(self) -> Iterator[float]:
        everything = concatenate([self.training, self.validation])
        features = features_of(self.start, everything, self.device, self.scope)
        counts = self._crop_weights()
        folds = []
        for held in folds_of_tracks(everything.tracks, FOLDS, self.seed):
            trains = np.flatnonzero(~held)
            measures = np.flatnonzero(held & (counts > 0.0))
            if len(trains) and len(measures):
                known = KnownFeatures(features[trains], features[measures], counts[measures])
                fold = Retraining(
                    self.start,
                    replace(self.family, epochs=self.epochs, data_fraction=1.0),
                    everything.take(trains),
                    everything.take(measures),
                    memory=None,
                    classes=self.classes,
                    seed=self.seed,
                    device=self.device,
                    scope=self.scope,
                    known=known,
                )
                folds.append((float(counts[measures].sum()), fold))
        weights = [weight for weight, _ in folds]
        yield float(np.average([fold.prepare() for _, fold in folds], weights=weights))
        for _ in range(self.epochs):
            yield float(
                np.average([fold.run_epoch().validation_accuracy for _, fold in folds], weights=weights)
            )


def subset_size(labelled_crops: int) -> int:
    """Crops in a subset of a window's labels."""
    return max(SUBSET_MIN_CROPS, round(SUBSET_FRACTION * labelled_crops))


def random_subset(training: LabelledCrops, seed: int, crops: int) -> LabelledCrops:
    """A uniformly random subset, which the paper found most indicative (§4.3), in its order.

    Args:
        training: what to draw from.
        seed: of the choice.
        crops: how many; all where there are no more.
    """
    if crops >= len(training):
        return training
    chosen = np.random.default_rng((seed, crops)).choice(len(training), crops, replace=False)
    return training.take(np.sort(chosen))


def weights_by_object(
    classes: NDArray[np.int64], tracks: NDArray[np.int64], background: int | None
) -> NDArray[np.float64]:
    """How much each crop counts, where those of one object are right or wrong together.

    A class counts by its crops, as it does in a window; within a class each object counts alike, since the
    one that stayed longest is not there in the next window.

    Args:
        classes: (N,) of each crop.
        tracks: (N,) object of each crop.
        background: a class that does not count; None where there is none.

    Returns:
        (N,) that sum to 1, or zeros where nothing counts.
    """
    weights = np.zeros(len(classes))
    counts = classes != background
    for index in np.unique(classes[counts]):
        members = np.flatnonzero(classes == index)
        _, of, crops = np.unique(tracks[members], return_inverse=True, return_counts=True)
        weights[members] = len(members) / counts.sum() / len(crops) / crops[of]
    return weights


def folds_of_tracks(tracks: NDArray[np.int64], folds: int, seed: int) -> list[NDArray[np.bool_]]:
    """Each crop is held out in one fold, with all crops of its object.

    Args:
        tracks: (N,) object of each crop.
        folds: how many; fewer where there are fewer objects.
        seed: of which objects go together.

    Returns:
        (N,) of each fold, whether a crop is held out.
    """
    drawn = np.random.default_rng((seed, folds)).permutation(np.unique(tracks))
    return [np.isin(tracks, drawn[first::folds]) for first in range(min(folds, len(drawn)))]
