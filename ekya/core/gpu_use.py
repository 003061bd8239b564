"""What a GPU did in a window, as its driver tells it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GpuUse:
    """What the driver's counters say of one GPU over one window. All processes on it count, not only ours.

    Attributes:
        gpu: its position among the GPUs of the run.
        uuid: its name.
        covered_us: time between the first and the last reading.
        memory_total_bytes: that it has.
        memory_mean_bytes, memory_peak_bytes: in use, over the readings.
        sm_activity: mean part, in [0, 1], of what ``sm_from`` names; None where nothing tells.
        sm_from: ``sm-utilization``: the part of the multiprocessors that were busy (GPM);
            ``kernel-utilization``: the part of the time in which any kernel ran, on however few
            multiprocessors; empty for neither.
        power_w: mean power; None where nothing tells.
        least_power_w: the lowest power read in the run so far; None where nothing tells.
        energy_j: spent; None where nothing tells.
        energy_from: ``counter``: the driver's; ``power``: the integral over the readings of power;
            empty for neither.
        readings: how many there were.
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
