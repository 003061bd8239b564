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


@dataclass(frozen=True, slots=True, order=True)
class InferenceConfig:
    """λ: frame sampling and resolution of inference (paper §3.1).

    Attributes:
        every: analyse every k-th frame, at least 1.
        resolution: side in pixels of the square that each object is resized to.
    """

    every: int
    resolution: int

    @property
    def name(self) -> str:
        """Name for display: ``every 2nd frame at 32 px``."""
        which = {1: "every frame", 2: "every 2nd frame", 3: "every 3rd frame"}
        return f"{which.get(self.every, f'every {self.every}th frame')} at {self.resolution} px"
