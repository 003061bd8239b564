"""GPU memory use of jobs."""

from dataclasses import dataclass

from ekya.core.configs import RetrainConfig
from ekya.core.profile import Family, family_of


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory use of training one family of γ, in bytes: calculated, not measured.

    Attributes:
        model_bytes: all weights and buffers of the model.
        trained_bytes: the weights that train.
        input_bytes: one crop as it enters the model.
        boundary_bytes: one crop where the frozen blocks end.
        passing_bytes: peak of one crop in a forward pass that keeps no activations.
        saved_bytes: activations of one crop kept in the trained blocks for the backward pass.
        forward_crops: crops per batch of a forward pass without training.
    """

    model_bytes: int
    trained_bytes: int
    input_bytes: int
    boundary_bytes: int
    passing_bytes: int
    saved_bytes: int
    forward_crops: int


@dataclass(frozen=True, slots=True)
class DidNotFit:
    """A γ, or the micro-profile of a family, for which there was not enough memory.

    Attributes:
        family: family of the γ.
        data_fraction: its part of the data; 0 for a micro-profile, whose memory does not grow with the data.
    """

    family: Family
    data_fraction: float

    @staticmethod
    def of(config: RetrainConfig) -> "DidNotFit":
        """Returns the record of a γ that did not fit."""
        return DidNotFit(family_of(config), config.data_fraction)

    def rules_out(self, config: RetrainConfig) -> bool:
        """Returns whether this γ needs at least as much memory, which does not depend on epochs."""
        return (
            config.trainable_blocks >= self.family.trainable_blocks
            and config.head_width >= self.family.head_width
            and config.batch_size >= self.family.batch_size
            and config.data_fraction >= self.data_fraction
        )
