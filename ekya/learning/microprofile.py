"""The measuring half of the micro-profiler: a few epochs on a small subset (paper §4.3).

Fitting the curve and extrapolating it is done in ``ekya.profiling``.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import numpy as np

from ekya.core.configs import RetrainConfig
from ekya.learning.edge import EdgeModel
from ekya.learning.labelled import LabelledCrops
from ekya.learning.memory import ExemplarMemory
from ekya.learning.trainer import Retraining

SUBSET_FRACTION = 0.1
"""Part of the window's labels that is tried on (paper §4.3: 5-10%)."""

SUBSET_MIN_CROPS = 64
"""At least so many crops are tried on, where there are as many."""

PROFILED_EPOCHS = 3
"""Epochs after which a micro-profile stops (paper §4.3: "a small number")."""


@dataclass(frozen=True, slots=True)
class FamilyCurve:
    """How one family of γ learns. A family shares everything but epochs and data fraction.

    Attributes:
        batch_size, head_width, trainable_blocks: the family.
        subset_crops: fresh crops that were trained on.
        epoch_crops: crops of one epoch, with the exemplars mixed in.
        prepared_crops: crops of the preparation: fresh, exemplars and validation.
        validation_crops: crops that each accuracy was measured on.
        validation_accuracy: before training, then after each epoch; shorter where it was stopped.
        seconds_per_epoch: mean by the given clock, validation included; 0.0 if no epoch ran.
        prepare_seconds: by the given clock.
    """

    batch_size: int
    head_width: int
    trainable_blocks: int
    subset_crops: int
    epoch_crops: int
    prepared_crops: int
    validation_crops: int
    validation_accuracy: tuple[float, ...]
    seconds_per_epoch: float
    prepare_seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class MicroProfile:
    """What to try: one family of γ from one model on one window's labels.

    Attributes:
        start: the model that serves.
        family: γ whose epochs and data fraction are ignored.
        training, validation: the window's labels, parted.
        memory: exemplars that a real retraining would mix in, or None.
        classes: outputs of a retrained model.
        seed: of the subset and the training.
        clock: seconds that the calling thread has worked.
        epochs: how many to try.
        device, scope: as of ``Retraining``.
    """

    start: EdgeModel
    family: RetrainConfig
    training: LabelledCrops
    validation: LabelledCrops
    memory: ExemplarMemory | None
    classes: tuple[str, ...]
    seed: int
    clock: Callable[[], float]
    epochs: int = PROFILED_EPOCHS
    device: str = "cpu"
    scope: Callable[[], AbstractContextManager[None]] = nullcontext

    def run(self, progress: Callable[[int], bool] = lambda _: True) -> FamilyCurve:
        """Try the family.

        Args:
            progress: called after the preparation (0) and after each epoch (1, 2, …), so that the
                caller can charge for it; False stops here.
        """
        subset = random_subset(self.training, self.seed, len(self.training) + len(self.validation))
        retraining = self._retraining(subset)
        began = self.clock()
        curve = [retraining.prepare()]
        prepare_seconds = self.clock() - began
        seconds: list[float] = []
        while progress(len(seconds)) and not retraining.done:
            began = self.clock()
            curve.append(retraining.run_epoch().validation_accuracy)
            seconds.append(self.clock() - began)
        return FamilyCurve(
            batch_size=self.family.batch_size,
            head_width=self.family.head_width,
            trainable_blocks=self.family.trainable_blocks,
            subset_crops=len(subset),
            epoch_crops=retraining.epoch_crops,
            prepared_crops=retraining.prepared_crops,
            validation_crops=retraining.validation_crops,
            validation_accuracy=tuple(curve),
            seconds_per_epoch=float(np.mean(seconds)) if seconds else 0.0,
            prepare_seconds=prepare_seconds,
        )

    def _retraining(self, subset: LabelledCrops) -> Retraining:
        return Retraining(
            self.start,
            replace(self.family, epochs=self.epochs, data_fraction=1.0),
            subset,
            self.validation,
            memory=self.memory,
            classes=self.classes,
            seed=self.seed,
            device=self.device,
            scope=self.scope,
        )


def random_subset(training: LabelledCrops, seed: int, labelled_crops: int) -> LabelledCrops:
    """A uniformly random subset, which the paper found most indicative (§4.3), in its order.

    Args:
        training: what to choose from.
        seed: of the choice.
        labelled_crops: labels of the window, which ``SUBSET_FRACTION`` refers to.
    """
    wanted = max(SUBSET_MIN_CROPS, round(SUBSET_FRACTION * labelled_crops))
    if wanted >= len(training):
        return training
    chosen = np.random.default_rng((seed, wanted)).choice(len(training), wanted, replace=False)
    return training.take(np.sort(chosen))
