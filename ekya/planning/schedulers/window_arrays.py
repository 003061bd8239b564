"""A view as arrays, so that many courses of a window are played in one batch.

V streams have 2·V jobs: job v < V is the inference of stream v, job V + v its retraining. A stream is in
state 0 now, and in state k > 0 once its k-th γ has completed. Shares count quanta δ, from 0 to a whole GPU;
time counts whole microseconds from now. A stream has λ of the edge model, or of the golden detector
(``serial.split_by_detector``): the accuracy of its model is 1 then.

Quanta are given out along upper concave hulls: with several jobs that compete for them, giving each next
quantum to the job that gains most per quantum is best where all gains are concave. Values with steps (a λ
that fits or does not) are not; their hull is, and only the one step at which the capacity runs out needs
separate treatment.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekya.core.units import FULL_GPU_MILLI
from ekya.core.view import RetrainOption, StreamView, WindowView
from ekya.planning.schedulers.checkpoint_gain import bends_of
from ekya.planning.schedulers.pick import SAME
from ekya.planning.schedulers.tables import Floats, Ints, analysed_parts, floor_quanta, training_speeds

FLAT = 1e-12
"""A rise per quantum below this counts as none."""


@dataclass(frozen=True, slots=True, eq=False)
class Hulls:
    """Concave hulls, cut into segments that get flatter; segments that a hull does not need are empty.

    Attributes:
        floor: (hulls,) the share in quanta at which each hull begins.
        size: (hulls, segments) length in quanta.
        rise: (hulls, segments) value per quantum.
    """

    floor: Ints
    size: Ints
    rise: Floats


def concave_hulls(values: Floats, floor: Ints) -> Hulls:
    """Returns hulls of ``values`` (hulls, shares) from ``floor`` (hulls,) to their maximum.

    Values need not rise.
    """
    count, shares = values.shape
    every, share = np.arange(count), np.arange(shares)
    at = floor.copy()
    sizes: list[Ints] = []
    rises: list[Floats] = []
    while True:
        ahead = share - at[:, None]
        rise = np.where(ahead > 0, (values - values[every, at][:, None]) / np.maximum(ahead, 1), 0.0)
        steepest = rise.max(axis=1)
        goes_on = steepest > FLAT
        if not goes_on.any() and sizes:
            break
        # Of collinear points the farthest, so that segments are few.
        on_line = rise >= (steepest * (1.0 - 1e-12))[:, None]
        to = np.where(goes_on, shares - 1 - np.argmax(on_line[:, ::-1], axis=1), at)
        sizes.append(to - at)
        rises.append(np.where(goes_on, steepest, 0.0))
        at = to
    return Hulls(floor, np.stack(sizes, axis=1), np.stack(rises, axis=1))


@dataclass(frozen=True, slots=True, eq=False)
class WindowArrays:
    """One view in numbers.

    Attributes:
        streams: of the view; index v everywhere.
        options: per stream, by state: None, then the γ worth considering, cheapest first.
        locked: (V,) whether the stream has a retraining in progress, whose γ is its only one.
        quanta: the capacity.
        left_us: until the window's end, at least 1.
        after_us: time after it for which the accuracy at its end counts (``WindowView.after_us``).
        weight: (V,) weights of the streams; they add up to 1.
        accuracy: (V, states) of the serving model, every frame analysed.
        work_gpu_s: (V, states) to reach the state from now; infinite for states that a stream does not have.
        early_part, bend: (V, states) of the gain from checkpoints (``checkpoint_gain``); 0 for none.
        value: (2·V, shares) what a share gives a job: the part of the accuracy that inference leaves, or the
            speed of a retraining.
        enough: (2·V, shares) the smallest share with that value.
        hulls: concave hulls of the values, each from a floor on.
        hull: (V, states) index of the hull that inference has in that state: its floor keeps a_MIN and the
            latency limit (``tables.floor_quanta``).
        floorless: (V,) index of the hull where that cannot be kept.
        training_hull: index of the hull of all retrainings.
        tie_breaks: (2·V · segments,) factors just above 1 that put equal segments in order.
    """

    streams: tuple[StreamView, ...]
    options: tuple[tuple[RetrainOption | None, ...], ...]
    locked: NDArray[np.bool_]
    quanta: int
    left_us: int
    after_us: int
    weight: Floats
    accuracy: Floats
    work_gpu_s: Floats
    early_part: Floats
    bend: Floats
    value: Floats
    enough: Ints
    hulls: Hulls
    hull: Ints
    floorless: Ints
    training_hull: int
    tie_breaks: Floats

    def flat_indices(self, states: Ints) -> Ints:
        """Returns (C, V) flat indices with which ``take`` reads these states from arrays (V, states)."""
        places: Ints = states + np.arange(len(self.accuracy)) * self.accuracy.shape[1]
        return places


def window_arrays_of(view: WindowView) -> WindowArrays:
    """Returns the arrays of a view with at least one stream, and a window that is not over."""
    streams = view.streams
    offered = [undominated_configs(stream) for stream in streams]
    states = 1 + max(len(known) for known in offered)
    accuracy = np.zeros((len(streams), states))
    work_gpu_s = np.full((len(streams), states), np.inf)
    early_part = np.zeros((len(streams), states))
    accuracy[:] = [[stream.accuracy] for stream in streams]
    work_gpu_s[:, 0] = 0.0
    for v, known in enumerate(offered):
        at = slice(1, len(known) + 1)
        accuracy[v, at] = [max(option.accuracy_after, streams[v].accuracy) for option in known]
        work_gpu_s[v, at] = [option.gpu_s for option in known]
        early_part[v, at] = [option.early_part for option in known]
    parts = np.maximum(*analysed_parts(view))
    value = np.concatenate([parts, np.broadcast_to(np.array(training_speeds(view)), parts.shape)])
    weight = np.array([stream.weight for stream in streams])
    rows, floor, hull, floorless = _hulls_by_state(floor_quanta(view, accuracy))
    known_hulls = concave_hulls(np.concatenate([value[rows], value[-1:]]), np.append(floor, 0))
    segments = len(value) * known_hulls.size.shape[1]
    return WindowArrays(
        streams=streams,
        options=tuple((None, *known) for known in offered),
        locked=np.array([stream.running is not None for stream in streams]),
        quanta=view.capacity_milli // view.quantum_milli,
        left_us=max(view.window_end_us - view.now_us, 1),
        after_us=view.after_us,
        weight=weight / weight.sum(),
        accuracy=accuracy,
        work_gpu_s=work_gpu_s,
        early_part=early_part,
        bend=bends_of(early_part),
        value=value,
        enough=_enough(value),
        hulls=known_hulls,
        hull=hull,
        floorless=floorless,
        training_hull=len(rows),
        tie_breaks=1.0 + 1e-12 * np.arange(segments, 0, -1),
    )


def undominated_configs(stream: StreamView) -> Sequence[RetrainOption]:
    """Returns the γ that no other beats in accuracy and GPU-seconds, cheapest first.

    A γ whose checkpoints serve also stays if no other brings as much as soon. A retraining in progress is
    the only option, even if it gains nothing.
    """
    if stream.running is not None:
        return (stream.running.option,)
    best = stream.accuracy + SAME
    kept: list[RetrainOption] = []
    for option in sorted(stream.retrain_options, key=lambda o: (o.gpu_s, -o.accuracy_after, o.config)):
        if option.accuracy_after > best:
            kept.append(option)
            best = option.accuracy_after + SAME
        elif _rises(stream, option) and not any(_sooner(other, option) for other in kept):
            kept.append(option)
    return kept


def _rises(stream: StreamView, option: RetrainOption) -> bool:
    return option.early_part > 0.0 and option.accuracy_after > stream.accuracy + SAME


def _sooner(first: RetrainOption, second: RetrainOption) -> bool:
    """Returns whether the first brings as much as the second, and no later on average."""
    return first.accuracy_after >= second.accuracy_after - SAME and _waits_s(first) <= _waits_s(second)


def _waits_s(option: RetrainOption) -> float:
    """Returns the mean delay of an option's gain, in seconds on a whole GPU."""
    return (1.0 - option.early_part) * option.gpu_s


def _enough(value: Floats) -> Ints:
    share = np.arange(value.shape[1])
    rises = np.ones(value.shape, dtype=bool)
    rises[:, 1:] = value[:, 1:] != value[:, :-1]
    enough: Ints = np.maximum.accumulate(np.where(rises, share, 0), axis=1)
    return enough


def _hulls_by_state(floors: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Returns the hulls that are needed (stream and floor of each), and hull indices by stream and state.

    The third array is (V, states); the last one (V,) is each stream's hull where its floor cannot be kept.
    """
    every = np.concatenate([np.zeros((len(floors), 1), np.intp), floors], axis=1)
    keys = every + np.arange(len(floors))[:, None] * (FULL_GPU_MILLI + 1)
    known, index = np.unique(keys, return_inverse=True)
    index = index.reshape(every.shape)
    stream, floor = np.divmod(known, FULL_GPU_MILLI + 1)
    return stream, floor, index[:, 1:], index[:, 0]
