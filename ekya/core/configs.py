"""Configurations of retraining (γ) and inference (λ) (paper §3.1)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class RetrainConfig:
    """γ: the hyperparameters of one retraining (paper §3.1).

    Attributes:
        epochs: passes over the training part of the window's labels, at least 1.
        batch_size: crops in one SGD step, at least 2 (batch normalisation needs two).
        head_width: neurons of the hidden layer before the classes; 0 is a linear head.
        trainable_blocks: how many of the model's blocks, counted from its end, are trained besides
            the head; 0 trains the head alone.
        data_fraction: part of the training labels that is used, in (0, 1].
    """

    epochs: int
    batch_size: int
    head_width: int
    trainable_blocks: int
    data_fraction: float

    @property
    def name(self) -> str:
        """Name for display: ``12 ep, 1 block, head 64, batch 16, 50% data``; a linear head is not named."""
        head = f" head {self.head_width}," if self.head_width else ""
        blocks = f"{self.trainable_blocks} block{'' if self.trainable_blocks == 1 else 's'}"
        return f"{self.epochs} ep, {blocks},{head} batch {self.batch_size}, {self.data_fraction:.0%} data"

    @property
    def thoroughness(self) -> tuple[float, ...]:
        """Sort key of γ without resource limits: blocks trained, crops seen, head, epochs, small batches."""
        seen = self.data_fraction * self.epochs
        return (self.trainable_blocks, seen, self.head_width, self.epochs, -self.batch_size)


REPLAY_RATIO = 0.5
"""Exemplars in an epoch as a fraction of its new crops; each epoch draws other ones."""


def crops_in_epoch(fresh_crops: int, exemplars: int) -> int:
    """Returns the number of crops in an epoch: all fresh ones, and exemplars for ``REPLAY_RATIO`` of them."""
    return fresh_crops + min(exemplars, round(REPLAY_RATIO * fresh_crops))


GOLDEN_RESOLUTION = 0
"""Resolution of a λ in which the golden detector analyses the frames, at its own resolution."""


def every_nth(every: int) -> str:
    """Returns the frames that are analysed, for display: ``every frame``, ``every 5th frame``."""
    names = {1: "every frame", 2: "every 2nd frame", 3: "every 3rd frame"}
    return names.get(every, f"every {every}th frame")


@dataclass(frozen=True, slots=True, order=True)
class InferenceConfig:
    """λ: frame sampling and resolution of inference (paper §3.1).

    Attributes:
        every: analyse every k-th frame, at least 1.
        resolution: side in pixels of the square that each object, or the frame, is resized to;
            ``GOLDEN_RESOLUTION`` for the golden detector instead of the edge model.
    """

    every: int
    resolution: int

    @property
    def name(self) -> str:
        """Name for display: ``every 2nd frame at 32 px``, ``golden detector on every 5th frame``."""
        which = every_nth(self.every)
        return f"golden detector on {which}" if self.by_golden else f"{which} at {self.resolution} px"

    @property
    def by_golden(self) -> bool:
        """True if the golden detector analyses the frames, and not the edge model."""
        return self.resolution == GOLDEN_RESOLUTION
