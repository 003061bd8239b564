"""Candidate courses: initial ones, and changes of a course that promise an improvement.

At a played course, the effect of a change of γ follows to first order: a stream's accuracy changes from its
completion on, and its work costs its worth per GPU-second (``schedule_simulation``).
"""

from collections.abc import Sequence
from itertools import islice, pairwise

import numpy as np
from numpy.typing import NDArray

from ekya.core.units import US_PER_S
from ekya.planning.schedulers.schedule_simulation import Courses, greedy_shares, settled_worths
from ekya.planning.schedulers.window_arrays import WindowArrays

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

WORK_LEVELS = (0.1, 0.2, 0.35, 0.5, 0.8)
"""Work of an initial course, as a part of what the GPUs could do in the window."""

PRICES = 40
"""Number of prices of a GPU-second that are tried to meet a work level."""

SCALES = (0.75, 1.33)
"""Factors on all worths together: slower and faster retraining."""

NEVER = 1e18
"""GPU-seconds that stand for infinite work."""


def initial_courses(arrays: WindowArrays, paces: Sequence[float]) -> tuple[Ints, Floats]:
    """Returns states and worths (C, V) of initial courses.

    ``paces`` are the GPUs that an initial course is assumed to retrain with, as a part of all; fewer make a
    GPU-second worth more.

    A price per GPU-second determines the γ that pay for themselves; each work level has its price. The
    streams are then ordered by gain per GPU-second (Smith's rule), and the worth of each is the gain that
    waits for it: its own and that of all streams behind it.
    """
    streams = len(arrays.streams)
    gain = (arrays.accuracy - arrays.accuracy[:, :1]) * (arrays.weight * _first_parts(arrays))[:, None]
    work = np.minimum(arrays.work_gpu_s, NEVER)
    gain[work >= NEVER] = 0.0
    rates = gain[:, 1:] / np.maximum(work[:, 1:], 1e-9)
    rates = rates[rates > 0.0]
    if not rates.size:
        return arrays.locked[None].astype(np.intp), np.zeros((1, streams))
    # Just below each rate, so that what has this rate pays for itself.
    prices = np.quantile(rates, np.linspace(0.0, 1.0, PRICES)) * (1.0 - 1e-6)
    stream = np.arange(streams)
    by_price = np.argmax(gain - prices[:, None, None] * work, axis=2)
    taken_on = work[stream, by_price].sum(axis=1)
    possible = _possible_gpu_s(arrays)
    states, worths = [], []
    for level in WORK_LEVELS:
        chosen = by_price[np.abs(taken_on - level * possible).argmin()]
        gains = gain[stream, chosen]
        rate = np.where(chosen > 0, gains / np.maximum(work[stream, chosen], 1e-9), 0.0)
        order = np.argsort(-rate, kind="stable")
        waiting = np.zeros(streams)
        waiting[order] = gains[order][::-1].cumsum()[::-1]
        for pace in paces:
            states.append(np.where(arrays.locked, 1, chosen))
            gpus = max(pace * possible / arrays.left_us * US_PER_S, 1e-6)
            worths.append(np.where(gains > 0.0, waiting / gpus, 0.0))
    return np.stack(states), np.stack(worths)


def _first_parts(arrays: WindowArrays) -> Floats:
    """Returns the part of each stream's accuracy that inference leaves when nothing retrains."""
    streams = len(arrays.streams)
    pull = np.concatenate([arrays.accuracy[:, 0] * arrays.weight, np.zeros(streams)])[None]
    hull = np.concatenate([arrays.hull[:, 0], np.full(streams, arrays.training_hull)])[None]
    shares = greedy_shares(arrays, hull, pull)[0, :streams]
    parts: Floats = arrays.value[np.arange(streams), shares]
    return parts


def _possible_gpu_s(arrays: WindowArrays) -> float:
    """Returns the work that all GPUs could do for retraining, in GPU-seconds.

    With a steep speed curve it exceeds their number times the window.
    """
    top = arrays.value.shape[1] - 1
    each = max(1, min(top, arrays.quanta // len(arrays.streams)))
    speed = arrays.value[-1]
    return float(max(speed[each] / each, speed[top] / top) * arrays.quanta * arrays.left_us / US_PER_S)


def first_order_gains(arrays: WindowArrays, courses: Courses, worths: Floats) -> Floats:
    """Returns (C, V, states) what each state would add, times the window's seconds.

    Streams that do not complete gain nothing by this estimate.
    """
    stream = np.arange(len(arrays.streams))
    now = arrays.accuracy[stream, courses.states]
    more = (arrays.accuracy - now[:, :, None]) * (arrays.weight * courses.parts)[:, :, None]
    completes = np.isfinite(courses.done_us)
    served_s = np.where(completes, arrays.left_us - courses.done_us, 0.0) / US_PER_S
    work = np.minimum(arrays.work_gpu_s, NEVER)
    extra = np.where(completes[:, :, None], work - work[stream, courses.states][:, :, None], 0.0)
    gains: Floats = more * served_s[:, :, None] - worths[:, :, None] * extra
    if arrays.bend.any():
        # Gain from checkpoints during training on a whole GPU.
        early_s = (arrays.accuracy - arrays.accuracy[:, :1]) * arrays.early_part * work
        early_s = early_s - early_s[stream, courses.states][:, :, None]
        gains += np.where(completes[:, :, None], early_s, 0.0) * (arrays.weight * courses.parts)[:, :, None]
    return gains


def chosen_again(arrays: WindowArrays, courses: Courses, worths: Floats) -> Ints:
    """Returns (C, V) the states that promise most at these worths; retrainings not completed keep theirs."""
    best = first_order_gains(arrays, courses, worths).argmax(axis=2)
    free = np.isfinite(courses.done_us) & ~arrays.locked
    chosen: Ints = np.where(free, best, courses.states)
    return chosen


def small_changes(arrays: WindowArrays, course: Courses, count: int) -> tuple[Ints, Floats]:
    """Returns states and worths (C, V) of promising changes of one course.

    The changes are its settled worths, all worths slower and faster, up to ``count`` γ that promise most to
    first order (∅ among them, and streams that did not retrain), and up to ``count`` swaps of neighbours in
    the order.
    """
    states, worths = course.states[0], course.worths[0]
    settled = settled_worths(course)[0]
    changed = [(states, settled), *((states, worths * scale) for scale in SCALES)]
    changed += _other_states(arrays, course, settled, count)
    changed += _swaps(states, worths, course.done_us[0], count)
    return np.stack([one for one, _ in changed]), np.stack([one for _, one in changed])


def _other_states(
    arrays: WindowArrays, course: Courses, settled: Floats, count: int
) -> list[tuple[Ints, Floats]]:
    gains = first_order_gains(arrays, course, settled[None])[0]
    worths = np.repeat(course.worths[0][:, None], gains.shape[1], axis=1)
    out = ~np.isfinite(course.done_us[0])
    gains[out], worths[out] = _joining(arrays, course, settled, out)
    gains[~out, course.states[0][~out]] = -np.inf
    gains[out, 0] = -np.inf
    gains[arrays.locked, 0] = -np.inf
    gains[~np.isfinite(arrays.work_gpu_s)] = -np.inf
    changed = []
    for index in np.argsort(-gains, axis=None, kind="stable")[:count]:
        stream, state = divmod(int(index), gains.shape[1])
        if not np.isfinite(gains[stream, state]):
            break
        new_states, new_worths = course.states[0].copy(), course.worths[0].copy()
        new_states[stream], new_worths[stream] = state, worths[stream, state]
        changed.append((new_states, new_worths))
    return changed


def _joining(
    arrays: WindowArrays, course: Courses, settled: Floats, out: NDArray[np.bool_]
) -> tuple[Floats, Floats]:
    """Returns gain and worth (V out, states) of streams that join, each at its best place in the order."""
    gain = (arrays.accuracy[out] - arrays.accuracy[out, :1]) * (arrays.weight * course.parts[0])[out, None]
    work_s = np.minimum(arrays.work_gpu_s[out], NEVER)
    runs = np.nonzero(np.isfinite(course.done_us[0]))[0]
    places = runs[np.argsort(-settled[runs], kind="stable")]
    if not len(places):
        worth = np.maximum(gain / np.maximum(work_s, 1e-9), 0.0)
        return gain * arrays.left_us / US_PER_S, worth * 2.0
    after_s = course.done_us[0][places] / US_PER_S
    waits_s = work_s * (1.0 - arrays.early_part[out])
    served_s = np.maximum(arrays.left_us / US_PER_S - after_s - waits_s[:, :, None], 0.0)
    promise = gain[:, :, None] * served_s - settled[places] * work_s[:, :, None]
    return promise.max(axis=2), settled[places][promise.argmax(axis=2)]


def _swaps(states: Ints, worths: Floats, done_us: Floats, count: int) -> list[tuple[Ints, Floats]]:
    order = np.argsort(done_us, kind="stable")[: np.isfinite(done_us).sum()]
    swapped = []
    for first, second in islice(pairwise(order), count):
        changed = worths.copy()
        changed[[first, second]] = worths[[second, first]]
        swapped.append((states, changed))
    return swapped
