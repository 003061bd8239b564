"""Use of a GPU in a window, from the driver's counters."""

from dataclasses import dataclass


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
        least_power_w: the lowest power read in the run so far; None where unavailable.
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
    least_power_w: float | None
    energy_j: float | None
    energy_from: str
    readings: int
