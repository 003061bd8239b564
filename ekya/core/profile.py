"""What the micro-profiler measures, before anything is fitted to it (paper §4.3)."""

from dataclasses import dataclass

from ekya.core.configs import RetrainConfig


@dataclass(frozen=True, slots=True, order=True)
class FamilyKey:
    """Configurations that share one micro-profiling run: all γ that differ only in how long they train.

    ``epochs`` and ``data_fraction`` only say where on the family's learning curve training stops.
    """

    trainable_blocks: int
    head_width: int
    batch_size: int


def family_of(config: RetrainConfig) -> FamilyKey:
    """The family that a γ belongs to."""
    return FamilyKey(config.trainable_blocks, config.head_width, config.batch_size)


@dataclass(frozen=True, slots=True)
class FamilyCurve:
    """A few epochs of one family on a small subset of a window's labels.

    Attributes:
        batch_size, head_width, trainable_blocks: the family.
        subset_crops: training crops in the subset.
        accuracies: validation accuracy after each epoch; index 0 is before training.
        epoch_gpu_s: GPU-seconds of one epoch over the subset at a full GPU, validation left out.
        prepare_gpu_s: GPU-seconds spent once before the first epoch, for the subset.
    """

    batch_size: int
    head_width: int
    trainable_blocks: int
    subset_crops: int
    accuracies: tuple[float, ...]
    epoch_gpu_s: float
    prepare_gpu_s: float

    @property
    def family(self) -> FamilyKey:
        """The family as a key."""
        return FamilyKey(self.trainable_blocks, self.head_width, self.batch_size)
