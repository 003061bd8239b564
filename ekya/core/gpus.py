"""Facts about GPUs: memory that jobs use, and counters of a window."""

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
    def from_config(config: RetrainConfig) -> "DidNotFit":
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


@dataclass(frozen=True, slots=True)
class GpuUse:
    """One GPU's counters over one window, for all processes on it, not only Ekya's.

    Attributes:
        gpu: position among the GPUs of the run.
        uuid: UUID of the GPU.
        covered_us: time between the first and the last reading.
        memory_total_bytes: total memory.
        memory_mean_bytes, memory_peak_bytes: memory in use, over the readings.
        sm_activity: mean part, in [0, 1], of the quantity in ``sm_from``; None where unavailable.
        sm_from: ``sm-utilization``: the part of the multiprocessors that were busy (GPM);
            ``kernel-utilization``: the part of the time in which any kernel ran, even on a single
            multiprocessor; empty for neither.
        power_w: mean power; None where unavailable.
        energy_j: energy spent; None where unavailable.
        energy_from: ``counter``: the driver's; ``power``: the integral over the readings of power;
            empty for neither.
        readings: number of readings.
    """

    gpu: int
    uuid: str
    covered_us: int
    memory_total_bytes: int
    memory_mean_bytes: int
    memory_peak_bytes: int
    sm_activity: float | None
    sm_from: str
    power_w: float | None
    energy_j: float | None
    energy_from: str
    readings: int
