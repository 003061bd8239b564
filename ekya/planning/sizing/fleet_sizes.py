"""Sizes of a fleet: those that its file sets, those that are chosen, and the machine that they fit."""

from dataclasses import dataclass

from ekya.core.units import FULL_GPU_MILLI

RESOLUTIONS = (32, 24)
COARSER_RESOLUTION = 16

MIN_ACCURACY = 0.4


@dataclass(frozen=True, slots=True)
class MachineSize:
    """Capacity that a run may use.

    Attributes:
        capacity_milli: over all GPUs, or over all cores; None on virtual time, which has what is asked for.
        on_cores: cores stand for GPUs.
    """

    capacity_milli: int | None
    on_cores: bool = True

    def capacity_in_words(self, milli: int) -> str:
        """Returns an amount of the capacity in words, for messages."""
        unit = "core" if self.on_cores else "GPU"
        return f"{milli / FULL_GPU_MILLI:g} {unit}{'' if milli == FULL_GPU_MILLI else 's'}"


@dataclass(frozen=True, slots=True)
class Wishes:
    """Sizes that the fleet file sets; None where it leaves a size open.

    Attributes:
        capacity_milli: of all GPUs that the fleet may use.
        window_s: length of a window.
        quantum_milli, steal_milli: δ and Δ.
        preparation_milli, preparation_part: the preparation's share, and the longest part of a window.
        longest_part: the largest ``preparation_part``.
        prepared: number of streams that are labelled and profiled in a window.
        every, resolutions: Λ of the edge model.
        golden_every: Λ of the golden detector.
        trainable_blocks: of Γ.
        least_epochs, least_data: of the smallest γ.
        usual_resolutions: of Λ where ``resolutions`` is open.
        coarser_resolution: added to them where time is short; None if there is none.
        labels: maximum number of labelled objects, or frames, for a stream and window.
        label_gpu_s: GPU-seconds that labelling a stream's window may take; None for no limit.
        draws_frames: whether frames that λ does not analyse are kept for labelling.
        min_accuracy: a_MIN.
    """

    longest_part: float
    least_epochs: int
    least_data: float
    labels: int
    label_gpu_s: float | None = None
    capacity_milli: int | None = None
    window_s: float | None = None
    quantum_milli: int | None = None
    steal_milli: int | None = None
    preparation_milli: int | None = None
    preparation_part: float | None = None
    prepared: int | None = None
    every: tuple[int, ...] | None = None
    resolutions: tuple[int, ...] | None = None
    golden_every: tuple[int, ...] = ()
    usual_resolutions: tuple[int, ...] = RESOLUTIONS
    coarser_resolution: int | None = COARSER_RESOLUTION
    trainable_blocks: tuple[int, ...] | None = None
    draws_frames: bool | None = None
    min_accuracy: float | None = None


@dataclass(frozen=True, slots=True)
class Sizes:
    """All sizes, as in ``Wishes``; ``prepared`` is the number of streams where all are prepared."""

    capacity_milli: int
    window_s: float
    quantum_milli: int
    steal_milli: int
    preparation_milli: int
    preparation_part: float
    prepared: int
    every: tuple[int, ...]
    resolutions: tuple[int, ...]
    trainable_blocks: tuple[int, ...]
    draws_frames: bool
    min_accuracy: float


@dataclass(frozen=True, slots=True)
class Fitted:
    """Sizes, and what was given up for them, in sentences for messages."""

    sizes: Sizes
    gave_up: tuple[str, ...]
