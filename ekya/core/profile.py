"""What the micro-profiler measured about retraining (paper §4.3)."""

from dataclasses import dataclass

from ekya.core.configs import RetrainConfig


@dataclass(frozen=True, slots=True, order=True)
class Family:
    """The γ that share one learning curve: they differ only in epochs and in the part of the data.

    One short training serves all of them, since epochs and data are both counted in crops seen.
    """

    trainable_blocks: int
    head_width: int
    batch_size: int


def family_of(config: RetrainConfig) -> Family:
    """The family whose curve tells what ``config`` would give."""
    return Family(config.trainable_blocks, config.head_width, config.batch_size)


@dataclass(frozen=True, slots=True)
class FamilyCurve:
    """One short training on a subset of the window's training labels.

    Attributes:
        batch_size, head_width, trainable_blocks: which family, as in ``RetrainConfig``.
        subset_crops: training crops in the subset, at least 1; one epoch sees each once.
        accuracies: validation accuracy in [0, 1]; index 0 is before training, then one an epoch.
        epoch_gpu_s: GPU-seconds at 100% of one GPU that one epoch on the subset takes.
        prepare_gpu_s: GPU-seconds spent once before the first epoch on the subset, such as the
            features of blocks that are not trained; it grows with the crops as an epoch does.
    """

    batch_size: int
    head_width: int
    trainable_blocks: int
    subset_crops: int
    accuracies: tuple[float, ...]
    epoch_gpu_s: float
    prepare_gpu_s: float

    @property
    def family(self) -> Family:
        """The family that this training stands for."""
        return Family(self.trainable_blocks, self.head_width, self.batch_size)
