"""Chooses the sizes of a fleet that the fleet file leaves open, so that the measured work fits the machine.

A floor for each stream has to fit, its cheapest λ of about one analysed frame a second, and beside all
floors the preparation. All else is chosen so that they do: a finer quantum for many streams, coarser λ, a
smaller preparation that is longer or prepares the streams in turn, and γ that end within a window.
"""

import math
from collections.abc import Sequence

from ekya.core.configs import GOLDEN_RESOLUTION, InferenceConfig
from ekya.core.errors import UserError
from ekya.core.host import HostCosts
from ekya.core.profile import FamilyCost
from ekya.core.units import FULL_GPU_MILLI, StreamId
from ekya.planning.profiling.inference_profile import (
    all_milli,
    floor_milli,
    needed_milli,
    prior_relative_accuracy,
)
from ekya.planning.sizing.fleet_sizes import (
    MIN_ACCURACY,
    READING_PART,
    FittedSizes,
    MachineSize,
    Sizes,
    Wishes,
    sacrificed_for_fit,
    too_much,
)

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
WINDOWS_IN_RECORDING = 4
"""Windows that the shortest recording holds, unless fewer are asked for."""
SHORTEST_WINDOW_S = 8.0
"""For a shorter one labels and retrainings would take too much of what a window has."""

EVERY = (1, 2, 3, 5, 10, 15, 30, 60)
GOLDEN_EVERY = (3, 5, 9, 15)
PREPARATION_MILLI = 900
PREPARATION_PART = 0.6
"""Upper bounds of the preparation's share: thousandths of a GPU, and a part of the capacity."""

LABELS_PART = 2 / 3
"""Part of the preparation's time for labelling, where γ are tried and there is no time for all streams."""

SURELY_LABELLED_PART = 0.8
"""Part of the preparation's time in which a stream's labels are made; measuring models takes the rest."""

DRAWN_FRAMES = 59
"""Frames of a window that are drawn for labelling, including the burst on which λ are profiled."""

DRAWN_PART = 0.1
"""Part of the capacity for detectors that analyse drawn frames."""

TYPICAL_ACCURACY = 0.8

KEEPING_PART = 0.5
"""Part of the capacity for keeping the minimum accuracy."""

TRIAL_EPOCHS = 8
"""Epochs of the micro-profile of the cheapest family of γ."""

TRAINING_PART = 0.8
"""Part of the labels for training; the rest validates."""

OVERLOADED_PART = 0.2
"""Part of the capacity for the preparation where the floors do not fit and the run goes on all the same."""


def choose_fleet_sizes(
    wishes: Wishes, costs: HostCosts, machine: MachineSize, *, overload: bool = False
) -> FittedSizes:
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


def _fit(
    wishes: Wishes, costs: HostCosts, machine: MachineSize, overload: bool, cores_part: float
) -> FittedSizes:
    """Returns sizes that fit this part of a machine's cores."""
    capacity = _capacity_milli(wishes, costs, machine, cores_part)
    quantum = wishes.quantum_milli or 0
    if quantum == 0 or (overload and quantum * (len(costs.streams) + 1) > capacity):
        quantum = _quantum_milli(wishes, len(costs.streams), capacity)
    capacity = capacity // quantum * quantum
    every = wishes.every or _every(costs)
    resolutions = wishes.resolutions or _resolutions(wishes, costs, every, capacity)
    golden_every = wishes.golden_every
    if golden_every is None:
        golden_every = _golden_every(costs, capacity)
    floors = _floors(costs, every, resolutions, quantum, golden_every)
    left = capacity - sum(floors.values())
    if left < quantum or max(floors.values()) > FULL_GPU_MILLI:
        if cores_part < 1.0 and _is_open(wishes, machine) and (machine.capacity_milli or 0) > capacity:
            # The cores left to other work are a default, and no default may keep a fleet from running.
            return _fit(wishes, costs, machine, overload, 1.0)
        if not overload:
            raise UserError(too_much(wishes, costs, machine, floors, capacity, quantum))
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
        labels=_labels(wishes, costs, share * part * window_s / FULL_GPU_MILLI),
        every=every,
        resolutions=resolutions,
        golden_every=golden_every,
        trainable_blocks=wishes.trainable_blocks or _blocks(wishes, costs, training_gpu_s),
        draws_frames=_draws_frames(wishes, costs, window_s, capacity),
        min_accuracy=_min_accuracy(wishes, costs, every, capacity),
    )
    return FittedSizes(sizes, tuple(sacrificed_for_fit(wishes, costs, machine, sizes, floors)))


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


def _is_open(wishes: Wishes, machine: MachineSize) -> bool:
    """Returns whether the file sets no number of GPUs, or more than there are."""
    there = machine.capacity_milli
    return wishes.capacity_milli is None or (there is not None and wishes.capacity_milli > there)


def _capacity_milli(wishes: Wishes, costs: HostCosts, machine: MachineSize, cores_part: float) -> int:
    there = machine.capacity_milli
    if wishes.capacity_milli is not None and not _is_open(wishes, machine):
        return wishes.capacity_milli
    if there is not None:
        usable = there
        if machine.on_cores and cores_part < 1.0:
            usable = round(there * cores_part - _reading_beyond_milli(costs, there))
        # The two jobs of a stream use a GPU each at most, and the preparation another.
        return max(min(usable, (2 * len(costs.streams) + 1) * FULL_GPU_MILLI), min(QUANTA_MILLI))
    # On virtual time: half of what analysing every frame takes, so that the scheduler has to choose.
    finest = max(_measured(costs))
    needed = sum(needed_milli(of, InferenceConfig(1, finest)) for of in costs.streams.values())
    return max(2, math.ceil(needed / FULL_GPU_MILLI)) * FULL_GPU_MILLI // 2


def _reading_beyond_milli(costs: HostCosts, there_milli: int) -> float:
    """Returns what reading the cameras takes beyond ``READING_PART`` of the cores, in thousandths of one."""
    return max(costs.reading_cores * FULL_GPU_MILLI - READING_PART * there_milli, 0.0)


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


def _golden_every(costs: HostCosts, capacity_milli: int) -> tuple[int, ...]:
    """Returns the frame intervals with which the golden detector keeps up with at least one camera."""
    known = [of for of in costs.streams.values() if GOLDEN_RESOLUTION in of.frame_gpu_s]
    most = min(capacity_milli, FULL_GPU_MILLI)
    return tuple(
        k
        for k in GOLDEN_EVERY
        if any(needed_milli(of, InferenceConfig(k, GOLDEN_RESOLUTION)) <= most for of in known)
    )


def _window_s(wishes: Wishes, costs: HostCosts, preparing_milli: float, training_milli: float) -> float:
    """Returns a length in which one stream is prepared, and the cheapest γ ends in half of the rest.

    A recording is short: where it would not hold several such windows, they are shorter.
    """
    prepared_gpu_s = _label_gpu_s(wishes, costs) / SURELY_LABELLED_PART + _trial_gpu_s(wishes, costs)
    prepared_s = prepared_gpu_s * FULL_GPU_MILLI / preparing_milli
    trained_s = 2.0 * _least_gpu_s(wishes, _cheapest(wishes, costs)) * FULL_GPU_MILLI / training_milli
    wanted_s = min(max(WINDOW_S, prepared_s, trained_s), LONGEST_WINDOW_S)
    recorded_s = min(
        (of.length_s for of in costs.streams.values() if of.length_s is not None), default=math.inf
    )
    # What the first window teaches, a second one has to show.
    windows = min(max(wishes.windows or WINDOWS_IN_RECORDING, 2), WINDOWS_IN_RECORDING)
    most_s = max(recorded_s / windows, SHORTEST_WINDOW_S)
    # Up to a tenth of a second, so that no window of an instant comes after the last.
    return float(math.ceil(wanted_s)) if wanted_s <= most_s else math.ceil(10 * most_s) / 10


def _prepared(wishes: Wishes, costs: HostCosts, budget_gpu_s: float) -> int:
    """Returns the number of streams that are labelled within a budget, of which trials need a part."""
    if wishes.prepared is not None:
        return min(wishes.prepared, len(costs.streams))
    part = LABELS_PART if wishes.tries else 1.0
    one_gpu_s, all_gpu_s = _label_gpu_s(wishes, costs), part * budget_gpu_s
    if all_gpu_s >= one_gpu_s * len(costs.streams):
        return len(costs.streams)
    return max(1, int(all_gpu_s / one_gpu_s))


def _labels(wishes: Wishes, costs: HostCosts, budget_gpu_s: float) -> int:
    """Returns the labels of a stream and window: fewer where the windows of a recording are too short."""
    surely_gpu_s = SURELY_LABELLED_PART * budget_gpu_s
    if wishes.least_labels is None or _label_gpu_s(wishes, costs) <= surely_gpu_s:
        return wishes.labels
    return max(min(wishes.labels, int(surely_gpu_s / costs.label_gpu_s)), wishes.least_labels)


def _label_gpu_s(wishes: Wishes, costs: HostCosts) -> float:
    """Returns the GPU-seconds to label a window of one stream."""
    labels_gpu_s = wishes.labels * costs.label_gpu_s
    return labels_gpu_s if wishes.label_gpu_s is None else min(labels_gpu_s, wishes.label_gpu_s)


def _trial_gpu_s(wishes: Wishes, costs: HostCosts) -> float:
    """Returns the GPU-seconds to micro-profile the cheapest family of γ on a stream's labels, if any is."""
    if not wishes.tries:
        return 0.0
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
    keeping = [k for k in every if prior_relative_accuracy(InferenceConfig(k, finest), finest) >= least]
    needed_milli = all_milli(costs, max(keeping, default=min(every)), finest)
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
