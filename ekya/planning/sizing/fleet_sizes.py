"""Sizes of a fleet: those that its file sets, those that are chosen, and the machine that they fit;
what a fleet gives up on a machine, and why it does not fit, in sentences for messages."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ekya.core.configs import InferenceConfig
from ekya.core.host import HostCosts
from ekya.core.units import FULL_GPU_MILLI, StreamId
from ekya.planning.profiling.inference_profile import all_milli

RESOLUTIONS = (32, 24)
COARSER_RESOLUTION = 16

MIN_ACCURACY = 0.4

READING_PART = 0.15
"""Part of the cores of a machine without GPUs for reading the cameras; what they take beyond, models lack."""


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
        windows: their number.
        quantum_milli, steal_milli: δ and Δ.
        preparation_milli, preparation_part: the preparation's share, and the longest part of a window.
        longest_part: the largest ``preparation_part``.
        prepared: number of streams that are labelled and profiled in a window.
        tries: whether γ are tried on the labels, as by the paper's micro-profiler.
        every, resolutions: Λ of the edge model.
        golden_every: Λ of the golden detector.
        trainable_blocks: of Γ.
        least_epochs, least_data: of the smallest γ.
        usual_resolutions: of Λ where ``resolutions`` is open.
        coarser_resolution: added to them where time is short; None if there is none.
        labels: maximum number of labelled objects, or frames, for a stream and window.
        least_labels: how far this number may be lowered; None where the file sets it.
        label_gpu_s: GPU-seconds that labelling a stream's window may take; None for no limit.
        draws_frames: whether frames that λ does not analyse are kept for labelling.
        min_accuracy: a_MIN.
    """

    longest_part: float
    least_epochs: int
    least_data: float
    labels: int
    tries: bool = False
    least_labels: int | None = None
    label_gpu_s: float | None = None
    capacity_milli: int | None = None
    window_s: float | None = None
    windows: int | None = None
    quantum_milli: int | None = None
    steal_milli: int | None = None
    preparation_milli: int | None = None
    preparation_part: float | None = None
    prepared: int | None = None
    every: tuple[int, ...] | None = None
    resolutions: tuple[int, ...] | None = None
    golden_every: tuple[int, ...] | None = None
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
    labels: int
    every: tuple[int, ...]
    resolutions: tuple[int, ...]
    golden_every: tuple[int, ...]
    trainable_blocks: tuple[int, ...]
    draws_frames: bool
    min_accuracy: float


@dataclass(frozen=True, slots=True)
class FittedSizes:
    """Sizes, and what was given up for them, in sentences for messages."""

    sizes: Sizes
    gave_up: tuple[str, ...]


def too_much(
    wishes: Wishes,
    costs: HostCosts,
    machine: MachineSize,
    floors: Mapping[StreamId, int],
    capacity_milli: int,
    quantum_milli: int,
) -> str:
    """Returns why the floors do not fit, and what to change."""
    left, fitting = capacity_milli - quantum_milli, 0
    for floor in sorted(floors.values()):
        if floor > min(left, FULL_GPU_MILLI):
            break
        left, fitting = left - floor, fitting + 1
    dearest = max(floors, key=lambda stream: floors[stream])
    frame_s = min(costs.streams[dearest].frame_gpu_s.values())
    wanted = machine.capacity_in_words(sum(floors.values()) + quantum_milli)
    remedies = ["fewer cameras"]
    if (
        machine.capacity_milli is None
        or capacity_milli < machine.capacity_milli // quantum_milli * quantum_milli
    ):
        remedies.append(f"--gpus {(sum(floors.values()) + quantum_milli) / FULL_GPU_MILLI:g}")
    remedies += [
        f"no {key}, so that it is chosen"
        for key, value in (("inference.every", wishes.every), ("quantum_milli", wishes.quantum_milli))
        if value is not None
    ]
    many = "one camera is too much" if len(floors) == 1 else f"{len(floors)} cameras are too many"
    return (
        f"gpus: {many} for {machine.capacity_in_words(capacity_milli)}: a frame of "
        f"{dearest} takes {1000 * frame_s:.3g} ms here, and the coarsest inference of all cameras takes "
        f"{wanted} with the least preparation; {fitting} of them fit. Use {', '.join(remedies)}, or "
        "--overload to go on with frames dropped"
    )


def sacrificed_for_fit(
    wishes: Wishes, costs: HostCosts, machine: MachineSize, sizes: Sizes, floors: Mapping[StreamId, int]
) -> Iterator[str]:
    """Yields what a larger machine would have allowed."""
    there = machine.capacity_milli
    if wishes.capacity_milli is not None and there is not None and wishes.capacity_milli > there:
        wished, here = wishes.capacity_milli / FULL_GPU_MILLI, sizes.capacity_milli / FULL_GPU_MILLI
        rest = "; the rest decodes video and plans" if sizes.capacity_milli < there else ""
        of = machine.capacity_in_words(there)
        yield f"gpus: {wished:g} is lowered to {here:g}, of {of} that are there{rest}"
    reads_milli = costs.reading_cores * FULL_GPU_MILLI
    if machine.on_cores and there is not None and reads_milli > READING_PART * there:
        of = machine.capacity_in_words(there)
        yield f"cores: reading the cameras takes {costs.reading_cores:.2g} of {of}, which models lack"
    if costs.analysing_milli > FULL_GPU_MILLI:
        yield (
            f"cores: to cut and hand over every frame takes {costs.analysing_milli / 10:.0f}% of what the "
            "cores and the inference servers can do; they bind, not the GPU, and newer frames replace some"
        )
    if sum(floors.values()) + sizes.quantum_milli > sizes.capacity_milli:
        yield "overload: not even one frame a second of each camera can be analysed; frames are dropped"
    else:
        finest = max(sizes.resolutions)
        densest = next((k for k in sizes.every if all_milli(costs, k, finest) <= sizes.capacity_milli), None)
        if densest is None:
            yield f"λ: not all cameras can be analysed at {finest} px at once"
        elif densest > min(sizes.every):
            yield f"λ: at most {InferenceConfig(densest, finest).name} of each camera"
    if wishes.preparation_milli is not None and sizes.preparation_milli < wishes.preparation_milli:
        yield (
            f"preparation.share_milli: {wishes.preparation_milli} is lowered to {sizes.preparation_milli}, "
            "which the cameras leave"
        )
    if wishes.prepared is None and sizes.prepared < len(floors):
        yield f"labels: {sizes.prepared} of {len(floors)} cameras are labelled in a window, in turn"
    if sizes.labels < wishes.labels:
        yield f"labels: {sizes.labels} instead of {wishes.labels} frames of a camera in a window"
    if sizes.min_accuracy < (MIN_ACCURACY if wishes.min_accuracy is None else wishes.min_accuracy):
        yield "min_accuracy: none is kept, as that would leave too little for retraining"
    if wishes.draws_frames is None and not sizes.draws_frames:
        yield "labels: they are made from frames that are analysed anyway, and λ are not measured"
    known = {cost.family.trainable_blocks for cost in costs.families}
    if wishes.trainable_blocks is None and set(sizes.trainable_blocks) < known:
        most = max(sizes.trainable_blocks)
        what = f"at most {most} blocks are" if most else "only heads are"
        yield f"γ: {what} retrained, as more does not end within a window"
