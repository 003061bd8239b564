"""What jobs take of a GPU's memory."""

from dataclasses import dataclass

from ekya.core.configs import RetrainConfig
from ekya.core.profile import Family, family_of


@dataclass(frozen=True, slots=True)
class Footprint:
    """What training one family of γ keeps in memory, in bytes: counted, not measured.

    Attributes:
        model_bytes: all weights and buffers of the model.
        trained_bytes: the weights that train.
        input_bytes: one crop as it enters the model.
        boundary_bytes: one crop where the frozen blocks end.
        passing_bytes: the most that one crop takes on its way through the model, nothing being kept.
        saved_bytes: what one crop leaves behind in the trained blocks for the backward pass.
        forward_crops: crops that pass at once where nothing is trained.
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
    """A γ, or the micro-profile of a family of them, for which there was not enough memory.

    Attributes:
        family: of the γ.
        data_fraction: its part of the data; 0 for a micro-profile, which takes no more for more data.
    """

    family: Family
    data_fraction: float

    @staticmethod
    def of(config: RetrainConfig) -> "DidNotFit":
        """What is known when this γ did not fit."""
        return DidNotFit(family_of(config), config.data_fraction)

    def rules_out(self, config: RetrainConfig) -> bool:
        """Whether this γ needs at least as much: more epochs take more time, and no memory."""
        return (
            config.trainable_blocks >= self.family.trainable_blocks
            and config.head_width >= self.family.head_width
            and config.batch_size >= self.family.batch_size
            and config.data_fraction >= self.data_fraction
        )
