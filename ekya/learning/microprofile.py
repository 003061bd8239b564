"""The measuring half of the micro-profiler: a few epochs on a small subset (paper §4.3).

Fitting the curve and extrapolating it is done in ``ekya.profiling``.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import numpy as np

from ekya.core.configs import RetrainConfig
from ekya.core.profile import FamilyCurve
from ekya.learning.edge import EdgeModel
from ekya.learning.labelled import LabelledCrops
from ekya.learning.memory import ExemplarMemory
from ekya.learning.operations import RetrainingCost, retraining_cost
from ekya.learning.trainer import Retraining

SUBSET_FRACTION = 0.1
"""Part of the window's labels that is tried on (paper §4.3: 5-10%)."""

SUBSET_MIN_CROPS = 64
"""At least so many crops are tried on, where there are as many."""

PROFILED_EPOCHS = 2
"""Epochs after which a micro-profile stops (paper §4.3: "a small number")."""


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
        clock: GPU-seconds that the caller has used so far; on a CPU, those of its thread.
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

        The curve's accuracies are fewer where it was stopped, and its ``epoch_gpu_s`` is 0.0 if no
        epoch ran.

        Args:
            progress: called after the preparation (0) and after each epoch (1, 2, …), so that the
                caller can charge for it; False stops here.
        """
        retraining = self._retraining()
        began = self.clock()
        accuracies = [retraining.prepare()]
        prepare_s = self.clock() - began
        seconds: list[float] = []
        while progress(len(seconds)) and not retraining.done:
            began = self.clock()
            accuracies.append(retraining.run_epoch().validation_accuracy)
            seconds.append(self.clock() - began)
        return FamilyCurve(
            batch_size=self.family.batch_size,
            head_width=self.family.head_width,
            trainable_blocks=self.family.trainable_blocks,
            subset_crops=retraining.fresh_crops,
            accuracies=tuple(accuracies),
            epoch_gpu_s=float(np.mean(seconds)) if seconds else 0.0,
            prepare_gpu_s=prepare_s,
        )

    def cost(self) -> RetrainingCost:
        """Counted operations of what ``run`` will do, without doing it."""
        return retraining_cost(self._retraining())

    def _retraining(self) -> Retraining:
        labelled_crops = len(self.training) + len(self.validation)
        subset = random_subset(self.training, self.seed, labelled_crops)
        return Retraining(
            self.start,
            replace(self.family, epochs=self.epochs, data_fraction=1.0),
            subset,
            self.validation,
            memory=_shrunk(self.memory, len(subset) / max(1, len(self.training)), self.seed),
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


def _shrunk(memory: ExemplarMemory | None, part: float, seed: int) -> ExemplarMemory | None:
    """As much of the memory as of the labels, so that a subset costs what its size promises."""
    exemplars = memory.exemplars() if memory is not None else None
    if memory is None or exemplars is None:
        return None
    count = round(part * len(exemplars))
    chosen = np.random.default_rng((seed, count)).choice(len(exemplars), count, replace=False)
    return ExemplarMemory(memory.budget_crops, exemplars.take(np.sort(chosen)))
