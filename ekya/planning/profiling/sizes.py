"""Chooses the sizes of a fleet that the fleet file leaves open, so that the measured work fits the machine.

A floor for each stream has to fit, its cheapest λ of about one analysed frame a second, and beside all
floors the preparation. All else is chosen so that they do: a finer quantum for many streams, coarser λ, a
smaller preparation that is longer or prepares the streams in turn, and γ that end within a window.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ekya.core.configs import GOLDEN_RESOLUTION, InferenceConfig
from ekya.core.errors import UserError
from ekya.core.host import HostCosts, StreamCosts
from ekya.core.profile import FamilyCost
from ekya.core.units import FULL_GPU_MILLI, StreamId
from ekya.planning.profiling.inference_profile import ALL, HEADROOM, period_gpu_s, prior_relative_accuracy

CORES_PART = 0.75
"""Part of the cores of a machine without GPUs that a fleet uses; the rest decodes video, plans and moves
data."""

QUANTA_MILLI = (50, 25, 20, 10, 5)
"""Candidate quanta. A finer quantum wastes less in rounding, and makes planning slower."""

QUANTA_PART = 0.25
"""Part of the capacity that one quantum for each stream may take."""

STEAL_MILLI = 100

WINDOW_S = 16.0
LONGEST_WINDOW_S = 300.0

EVERY = (1, 2, 3, 5, 10, 15, 30, 60)
RESOLUTIONS = (32, 24)
COARSER_RESOLUTION = 16

PREPARATION_MILLI = 900
PREPARATION_PART = 0.6
"""Upper bounds of the preparation's share: thousandths of a GPU, and a part of the capacity."""

LABELS_PART = 2 / 3
"""Part of the preparation's time for labelling, where there is no time for all streams."""

DRAWN_FRAMES = 59
"""Frames of a window that are drawn for labelling, including the burst on which λ are profiled."""

DRAWN_PART = 0.1
"""Part of the capacity for detectors that analyse drawn frames."""

MIN_ACCURACY = 0.4
TYPICAL_ACCURACY = 0.8

KEEPING_PART = 0.5
"""Part of the capacity for keeping the minimum accuracy."""

TRIAL_EPOCHS = 8
"""Epochs of the micro-profile of the cheapest family of γ."""

TRAINING_PART = 0.8
"""Part of the labels for training; the rest validates."""

OVERLOADED_PART = 0.2
"""Part of the capacity for the preparation where the floors do not fit and the run goes on all the same."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Capacity that a run may use.

    Attributes:
        capacity_milli: over all GPUs, or over all cores; None on virtual time, which has what is asked for.
        on_cores: cores stand for GPUs.
    """

    capacity_milli: int | None
    on_cores: bool = True

    def worded(self, milli: int) -> str:
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


def fit(wishes: Wishes, costs: HostCosts, machine: Machine, *, overload: bool = False) -> Fitted:
    """Returns sizes that fit.

    Sizes set by the file are kept, except a capacity above the machine's, and a preparation that does not
    fit beside the floors.

    Args:
        wishes: sizes set by the fleet file.
        costs: of the fleet's work, on this machine; of at least one stream and one family of γ.
        machine: available capacity.
        overload: go on where the floors of all streams do not fit.

    Raises:
        UserError: the floors of all streams do not fit.
    """
    return _fit(wishes, costs, machine, overload, CORES_PART)


def _fit(wishes: Wishes, costs: HostCosts, machine: Machine, overload: bool, cores_part: float) -> Fitted:
    """Returns sizes that fit this part of a machine's cores."""
    capacity = _capacity_milli(wishes, costs, machine, cores_part)
    quantum = wishes.quantum_milli or 0
    if quantum == 0 or (overload and quantum * (len(costs.streams) + 1) > capacity):
        quantum = _quantum_milli(wishes, len(costs.streams), capacity)
    capacity = capacity // quantum * quantum
    every = wishes.every or _every(costs)
    resolutions = wishes.resolutions or _resolutions(wishes, costs, every, capacity)
    floors = _floors(costs, every, resolutions, quantum, wishes.golden_every)
    left = capacity - sum(floors.values())
    if left < quantum or max(floors.values()) > FULL_GPU_MILLI:
        if cores_part < 1.0 and _is_open(wishes, machine) and (machine.capacity_milli or 0) > capacity:
            # The cores left to other work are a default, and no default may keep a fleet from running.
            return _fit(wishes, costs, machine, overload, 1.0)
        if not overload:
            raise UserError(_too_much(wishes, costs, machine, floors, capacity, quantum))
        left = max(_down(OVERLOADED_PART * capacity, quantum), quantum)
    most = max(_down(min(PREPARATION_MILLI, PREPARATION_PART * capacity), quantum), quantum)
    share = min(wishes.preparation_milli or most, left)
    part = wishes.preparation_part or wishes.longest_part
    window_s = wishes.window_s or _window_s(wishes, costs, share * part, left * (1.0 - part))
    training_gpu_s = min(left, FULL_GPU_MILLI) * (1.0 - part) * window_s / FULL_GPU_MILLI
    sizes = Sizes(
        capacity_milli=capacity,
        window_s=window_s,
        quantum_milli=quantum,
        steal_milli=wishes.steal_milli or max(_down(STEAL_MILLI, quantum), quantum),
        preparation_milli=share,
        preparation_part=part,
        prepared=_prepared(wishes, costs, share * part * window_s / FULL_GPU_MILLI),
        every=every,
        resolutions=resolutions,
        trainable_blocks=wishes.trainable_blocks or _blocks(wishes, costs, training_gpu_s),
        draws_frames=_draws_frames(wishes, costs, window_s, capacity),
        min_accuracy=_min_accuracy(wishes, costs, every, capacity),
    )
    return Fitted(sizes, tuple(_given_up(wishes, costs, machine, sizes, floors)))


def floor_milli(
    of: StreamCosts, every: Sequence[int], resolutions: Sequence[int], golden_every: Sequence[int] = ()
) -> int:
    """Returns the share of a stream's cheapest λ that analyses about one frame a second, or more of them."""
    fastest = max(1, round(of.fps))
    once_a_second = [k for k in every if k <= fastest] or [min(every)]
    configs = [InferenceConfig(k, side) for k in once_a_second for side in resolutions]
    configs += [InferenceConfig(k, GOLDEN_RESOLUTION) for k in golden_every if k <= fastest]
    return min(_needed_milli(of, config) for config in configs)


def _needed_milli(of: StreamCosts, config: InferenceConfig) -> int:
    """Returns the share with which a λ keeps up."""
    gpu_s = period_gpu_s(config, of.frame_gpu_s, of.following_gpu_s, of.fps)
    return math.ceil(FULL_GPU_MILLI * gpu_s * of.fps / config.every * HEADROOM)


def _floors(
    costs: HostCosts,
    every: Sequence[int],
    resolutions: Sequence[int],
    quantum_milli: int,
    golden_every: Sequence[int] = (),
) -> dict[StreamId, int]:
    return {
        stream: -(-floor_milli(of, every, resolutions, golden_every) // quantum_milli) * quantum_milli
        for stream, of in costs.streams.items()
    }


def _is_open(wishes: Wishes, machine: Machine) -> bool:
    """Returns whether the file sets no number of GPUs, or more than there are."""
    there = machine.capacity_milli
    return wishes.capacity_milli is None or (there is not None and wishes.capacity_milli > there)


def _capacity_milli(wishes: Wishes, costs: HostCosts, machine: Machine, cores_part: float) -> int:
    there = machine.capacity_milli
    if wishes.capacity_milli is not None and not _is_open(wishes, machine):
        return wishes.capacity_milli
    if there is not None:
        usable = round(there * cores_part) if machine.on_cores else there
        # The two jobs of a stream use a GPU each at most, and the preparation another.
        return max(min(usable, (2 * len(costs.streams) + 1) * FULL_GPU_MILLI), min(QUANTA_MILLI))
    # On virtual time: half of what analysing every frame takes, so that the scheduler has to choose.
    finest = max(_measured(costs))
    needed = sum(_needed_milli(of, InferenceConfig(1, finest)) for of in costs.streams.values())
    return max(2, math.ceil(needed / FULL_GPU_MILLI)) * FULL_GPU_MILLI // 2


def _quantum_milli(wishes: Wishes, streams: int, capacity_milli: int) -> int:
    """Returns the coarsest quantum that wastes little.

    Shares that the file sets in thousandths must be multiples of it.
    """
    multiples = [milli for milli in (wishes.steal_milli, wishes.preparation_milli) if milli is not None]
    possible = [one for one in QUANTA_MILLI if all(milli % one == 0 for milli in multiples)] or [1]
    wasted_milli = QUANTA_PART * capacity_milli
    return next((one for one in possible if one * streams <= wasted_milli), possible[-1])


def _every(costs: HostCosts) -> tuple[int, ...]:
    """Returns frame intervals from every frame to one frame a second of each camera."""
    slowest = {max(1, round(of.fps)) for of in costs.streams.values()}
    return tuple(sorted({k for k in EVERY if k <= max(slowest)} | {min(slowest), max(slowest)}))


def _measured(costs: HostCosts) -> set[int]:
    """Returns the edge model's resolutions with measured costs for every camera."""
    return set.intersection(*(set(of.frame_gpu_s) for of in costs.streams.values())) - {GOLDEN_RESOLUTION}


def _resolutions(
    wishes: Wishes, costs: HostCosts, every: Sequence[int], capacity_milli: int
) -> tuple[int, ...]:
    """Returns the usual ones, and a coarser one where floors would take more than half of the capacity."""
    known, coarser = _measured(costs), wishes.coarser_resolution
    usual = tuple(one for one in wishes.usual_resolutions if one in known)
    usual = usual or tuple(sorted(known, reverse=True))
    floors = _floors(costs, every, usual, 1)
    if coarser is not None and coarser in known and 2 * sum(floors.values()) > capacity_milli:
        return (*usual, coarser)
    return usual


def _window_s(wishes: Wishes, costs: HostCosts, preparing_milli: float, training_milli: float) -> float:
    """Returns a length in which one stream is prepared, and the cheapest γ ends in half of the rest."""
    prepared_s = (
        (_label_gpu_s(wishes, costs) + _trial_gpu_s(wishes, costs)) * FULL_GPU_MILLI / preparing_milli
    )
    trained_s = 2.0 * _least_gpu_s(wishes, _cheapest(wishes, costs)) * FULL_GPU_MILLI / training_milli
    return float(math.ceil(min(max(WINDOW_S, prepared_s, trained_s), LONGEST_WINDOW_S)))


def _prepared(wishes: Wishes, costs: HostCosts, budget_gpu_s: float) -> int:
    """Returns the number of streams that are labelled within the labelling part of a budget.

    The rest of the budget is for profiling those in need.
    """
    if wishes.prepared is not None:
        return min(wishes.prepared, len(costs.streams))
    one_gpu_s, all_gpu_s = _label_gpu_s(wishes, costs), LABELS_PART * budget_gpu_s
    if all_gpu_s >= one_gpu_s * len(costs.streams):
        return len(costs.streams)
    return max(1, int(all_gpu_s / one_gpu_s))


def _label_gpu_s(wishes: Wishes, costs: HostCosts) -> float:
    """Returns the GPU-seconds to label a window of one stream."""
    labels_gpu_s = wishes.labels * costs.label_gpu_s
    return labels_gpu_s if wishes.label_gpu_s is None else min(labels_gpu_s, wishes.label_gpu_s)


def _trial_gpu_s(wishes: Wishes, costs: HostCosts) -> float:
    """Returns the GPU-seconds to micro-profile the cheapest family of γ on a stream's labels."""
    cost = _cheapest(wishes, costs)
    return wishes.labels * (cost.prepare_gpu_s + TRIAL_EPOCHS * cost.epoch_gpu_s)


def _cheapest(wishes: Wishes, costs: HostCosts) -> FamilyCost:
    return min(costs.families, key=lambda cost: (_least_gpu_s(wishes, cost), cost.family))


def _least_gpu_s(wishes: Wishes, cost: FamilyCost) -> float:
    """Returns the GPU-seconds of a family's smallest γ."""
    crops = wishes.least_data * TRAINING_PART * wishes.labels
    return crops * (cost.prepare_gpu_s + wishes.least_epochs * cost.epoch_gpu_s)


def _min_accuracy(wishes: Wishes, costs: HostCosts, every: Sequence[int], capacity_milli: int) -> float:
    """Returns the usual a_MIN, or 0 where typical models would need more than half of the capacity for it.

    Its share comes before any retraining. A value set by the file is kept, unless the file's GPUs are not
    there.
    """
    lowered = (wishes.capacity_milli or 0) > capacity_milli + max(QUANTA_MILLI)
    if wishes.min_accuracy is not None and not lowered:
        return wishes.min_accuracy
    usual = MIN_ACCURACY if wishes.min_accuracy is None else wishes.min_accuracy
    finest = max(_measured(costs))
    least = usual / TYPICAL_ACCURACY
    held = 0 if any(finest in of.following_gpu_s for of in costs.streams.values()) else ALL
    keeping = [k for k in every if prior_relative_accuracy(InferenceConfig(k, finest), finest, held) >= least]
    needed_milli = _all_milli(costs, max(keeping, default=min(every)), finest)
    return usual if needed_milli <= KEEPING_PART * capacity_milli else 0.0


def _draws_frames(wishes: Wishes, costs: HostCosts, window_s: float, capacity_milli: int) -> bool:
    """Returns whether detectors have time for frames that λ does not analyse."""
    if wishes.draws_frames is not None:
        return wishes.draws_frames
    finding_gpu_s = sum(of.finding_gpu_s for of in costs.streams.values())
    return FULL_GPU_MILLI * finding_gpu_s * DRAWN_FRAMES / window_s <= DRAWN_PART * capacity_milli


def _blocks(wishes: Wishes, costs: HostCosts, training_gpu_s: float) -> tuple[int, ...]:
    """Returns the block counts of which a γ can end within a window, and that of the cheapest family."""
    kept = {
        cost.family.trainable_blocks
        for cost in (_cheapest(wishes, costs), *costs.families)
        if cost == _cheapest(wishes, costs) or _least_gpu_s(wishes, cost) <= training_gpu_s
    }
    return tuple(sorted(kept))


def _down(milli: float, quantum_milli: int) -> int:
    return int(milli) // quantum_milli * quantum_milli


def _too_much(
    wishes: Wishes,
    costs: HostCosts,
    machine: Machine,
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
    wanted = machine.worded(sum(floors.values()) + quantum_milli)
    remedies = ["fewer cameras"]
    if machine.capacity_milli is None or capacity_milli < _down(machine.capacity_milli, quantum_milli):
        remedies.append(f"--gpus {(sum(floors.values()) + quantum_milli) / FULL_GPU_MILLI:g}")
    remedies += [
        f"no {key}, so that it is chosen"
        for key, value in (("inference.every", wishes.every), ("quantum_milli", wishes.quantum_milli))
        if value is not None
    ]
    many = "one camera is too much" if len(floors) == 1 else f"{len(floors)} cameras are too many"
    return (
        f"gpus: {many} for {machine.worded(capacity_milli)}: a frame of "
        f"{dearest} takes {1000 * frame_s:.3g} ms here, and the coarsest inference of all cameras takes "
        f"{wanted} with the least preparation; {fitting} of them fit. Use {', '.join(remedies)}, or "
        "--overload to go on with frames dropped"
    )


def _given_up(
    wishes: Wishes, costs: HostCosts, machine: Machine, sizes: Sizes, floors: Mapping[StreamId, int]
) -> Iterator[str]:
    """Yields what a larger machine would have allowed."""
    there = machine.capacity_milli
    if wishes.capacity_milli is not None and there is not None and wishes.capacity_milli > there:
        wished, here = wishes.capacity_milli / FULL_GPU_MILLI, sizes.capacity_milli / FULL_GPU_MILLI
        rest = "; the rest decodes video and plans" if sizes.capacity_milli < there else ""
        yield f"gpus: {wished:g} is lowered to {here:g}, of {machine.worded(there)} that are there{rest}"
    if sum(floors.values()) + sizes.quantum_milli > sizes.capacity_milli:
        yield "overload: not even one frame a second of each camera can be analysed; frames are dropped"
    else:
        finest = max(sizes.resolutions)
        densest = next((k for k in sizes.every if _all_milli(costs, k, finest) <= sizes.capacity_milli), None)
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
    if sizes.min_accuracy < (MIN_ACCURACY if wishes.min_accuracy is None else wishes.min_accuracy):
        yield "min_accuracy: none is kept, as that would leave too little for retraining"
    if wishes.draws_frames is None and not sizes.draws_frames:
        yield "labels: they are made from frames that are analysed anyway, and λ are not measured"
    known = {cost.family.trainable_blocks for cost in costs.families}
    if wishes.trainable_blocks is None and set(sizes.trainable_blocks) < known:
        most = max(sizes.trainable_blocks)
        what = f"at most {most} blocks are" if most else "only heads are"
        yield f"γ: {what} retrained, as more does not end within a window"


def _all_milli(costs: HostCosts, every: int, resolution: int) -> int:
    """Returns the share of one λ for all streams; of a slower camera no less than one frame a second."""
    return sum(
        _needed_milli(of, InferenceConfig(min(every, max(1, round(of.fps))), resolution))
        for of in costs.streams.values()
    )
