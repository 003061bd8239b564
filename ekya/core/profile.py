"""The micro-profiler's measurements of retraining (paper §4.3)."""

from dataclasses import dataclass
from enum import StrEnum

from ekya.core.configs import RetrainConfig


class Profiler(StrEnum):
    """Method of micro-profiling γ: the trials, and the estimates from them."""

    EKYA = "ekya"
    """Nothing is tried: what is usual for γ, corrected by what past retrainings brought."""
    PAPER = "paper"
    """Each family for five epochs on a tenth of the labels, and Optimus' curve through that (paper §4.3)."""


@dataclass(frozen=True, slots=True, order=True)
class Family:
    """γ that share one learning curve: they differ only in epochs and in the part of the data.

    One short training profiles all of them, since epochs and data are both counted in crops seen.
    """

    trainable_blocks: int
    head_width: int
    batch_size: int


def family_of(config: RetrainConfig) -> Family:
    """Returns the family of ``config``, from whose curve its accuracy is estimated."""
    return Family(config.trainable_blocks, config.head_width, config.batch_size)


@dataclass(frozen=True, slots=True)
class FamilyCost:
    """Training cost of a family before any measurement, from the cost card.

    Attributes:
        prepare_gpu_s: once per crop, for the frozen part of the model.
        epoch_gpu_s: per crop and epoch.
    """

    family: Family
    prepare_gpu_s: float
    epoch_gpu_s: float

    def gpu_s(self, config: RetrainConfig, training_crops: int) -> float:
        """Returns GPU-seconds of a whole retraining with a γ of this family."""
        crops = config.data_fraction * training_crops
        return crops * (self.prepare_gpu_s + config.epochs * self.epoch_gpu_s)


@dataclass(frozen=True, slots=True)
class FamilyCurve:
    """Learning curve of one short training on a part of the window's labels, and the costs of a long one.

    A retraining on n crops takes, with x = n / ``subset_crops``,
    ``fixed_prepare_gpu_s`` + x · ``prepare_gpu_s`` GPU-seconds before its first epoch and
    ``fixed_epoch_gpu_s`` + x · ``epoch_gpu_s`` in each: at 100% of one GPU.

    Attributes:
        batch_size, head_width, trainable_blocks: the family, as in ``RetrainConfig``.
        subset_crops: training crops in one epoch of the trial, at least 1.
        accuracies: validation accuracy in [0, 1]; index 0 is before training, then one per epoch. Empty
            where a trial measured only time.
        epoch_gpu_s: training on fresh crops and their part of the exemplars; 0.0 where no epoch was run.
        prepare_gpu_s: spent once on fresh crops, such as on the features of blocks that are not trained.
        validation_crops: number of independent crops behind each accuracy; None for the window's
            validation part.
        fixed_prepare_gpu_s, fixed_epoch_gpu_s: spent on exemplars and validation, independent of the part
            of the labels used.
    """

    batch_size: int
    head_width: int
    trainable_blocks: int
    subset_crops: int
    accuracies: tuple[float, ...]
    epoch_gpu_s: float
    prepare_gpu_s: float
    validation_crops: int | None = None
    fixed_prepare_gpu_s: float = 0.0
    fixed_epoch_gpu_s: float = 0.0

    @property
    def family(self) -> Family:
        """Family of the trial."""
        return Family(self.trainable_blocks, self.head_width, self.batch_size)
