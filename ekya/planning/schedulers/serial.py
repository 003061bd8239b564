"""Serial scheduler: few retrainings at a time, on large shares, in order of gain per GPU-second.

A thief holds its shares to the window's end, so all retrainings run together on slivers and all complete
late. One after the other, each on all that retraining gets, the first completes much sooner and the last no
later (Smith's rule, where the speed is linear in the share); where a sliver of a GPU is faster than its
share, some run together. ``schedule_simulation`` decides this; ``best_course`` finds the γ, the
streams and the order: a few initial courses differ in how much work they take on and in the part of the GPUs
that they give to it. Each is played, its worths are settled and its γ chosen again at these worths; the best
result is then changed in small ways as long as it improves. Effort is limited by the number of courses
played, never by time, so the same view gives the same course.

At a played course, the effect of a change of γ follows to first order: a stream's accuracy changes from its
completion on, and its work costs its worth per GPU-second (``schedule_simulation``).

The plan has a phase per completion, and inference shares are chosen anew in each. a_MIN and the latency
limits are kept in every phase for as many streams as possible. Where λ of the golden detector are offered,
``exact`` says which streams it answers: a planner that looks for courses of a window multiplies what γ and λ
are worth (``objective.py``), so it is given each stream with the λ of one detector only.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ekya.core.plan import Phase, Plan
from ekya.core.units import US_PER_S
from ekya.core.view import StreamView, WindowView
from ekya.planning.schedulers.exact import Exact
from ekya.planning.schedulers.phases import plan_of_course
from ekya.planning.schedulers.pick import SAME
from ekya.planning.schedulers.schedule_simulation import (
    Courses,
    greedy_shares,
    settled_worths,
    simulate_schedule,
)
from ekya.planning.schedulers.scheduler import Needs
from ekya.planning.schedulers.window_arrays import WindowArrays, window_arrays_of

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
    served_s = np.where(completes, arrays.left_us + arrays.after_us - courses.done_us, 0.0) / US_PER_S
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
        return gain * (arrays.left_us + arrays.after_us) / US_PER_S, worth * 2.0
    after_s = course.done_us[0][places] / US_PER_S
    waits_s = work_s * (1.0 - arrays.early_part[out])
    left_s = arrays.left_us / US_PER_S - after_s - waits_s[:, :, None]
    served_s = np.where(left_s > 0.0, left_s + arrays.after_us / US_PER_S, 0.0)
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


@dataclass(frozen=True, slots=True)
class Serial:
    """Runs one retraining after the other, or few at a time."""

    name: ClassVar[str] = "serial"
    needs: ClassVar[Needs] = Needs(labels=True, inference_profile=True, micro_profile=True, early_parts=True)

    def plan(self, view: WindowView) -> Plan:
        """Returns a plan with a phase for each completion until the window's end."""
        if not view.streams:
            return Plan((Phase(()),), 0.0)
        arrays = window_arrays_of(self._searched(view))
        found = best_course(arrays, effort_for(len(view.streams)))
        return plan_of_course(view, arrays, found.courses)

    def _searched(self, view: WindowView) -> WindowView:
        """Returns the view to search in: with golden detectors where the best plan of one phase has them."""
        return split_by_detector(view, Exact().plan(view).phases[0]) if offers_golden(view) else view


@dataclass(frozen=True, slots=True)
class Effort:
    """Effort of a search.

    Attributes:
        paces: of the initial courses (``changes.initial_courses``).
        kept: initial courses that are continued after the first play.
        settlings: how often worths are settled and γ chosen again.
        rounds: maximum of rounds of small changes.
        changes: approximate number of small changes in one round.
        ends_each: maximum of completions between two fillings (``simulate_schedule``).
    """

    paces: tuple[float, ...]
    kept: int
    settlings: int
    rounds: int
    changes: int
    ends_each: int


def effort_for(streams: int) -> Effort:
    """Returns the effort for a number of streams: less for each course where courses are long.

    With many streams on few GPUs inference leaves little to retraining, so paces are lower.
    """
    if streams <= 16:
        return Effort((0.05, 0.3), kept=3, settlings=1, rounds=2, changes=10, ends_each=1)
    paces = (0.03, 0.1, 0.3)
    if streams <= 160:
        return Effort(paces, kept=3, settlings=4, rounds=2, changes=6, ends_each=4)
    return Effort(paces, kept=3, settlings=3, rounds=0, changes=0, ends_each=8)


@dataclass(frozen=True, slots=True, eq=False)
class FoundCourse:
    """A course, the only one in ``courses``, and its score."""

    courses: Courses
    score: float


def best_course(arrays: WindowArrays, effort: Effort) -> FoundCourse:
    """Returns the best course found."""
    courses = simulate_schedule(arrays, *initial_courses(arrays, effort.paces), effort.ends_each)
    best = _best_of(courses, arrays)
    order = np.argsort(-_scores(courses, arrays), kind="stable")[: effort.kept]
    courses = courses.select_courses(order)
    for _ in range(effort.settlings):
        worths = settled_worths(courses)
        courses = simulate_schedule(arrays, chosen_again(arrays, courses, worths), worths, effort.ends_each)
        best = _better(best, _best_of(courses, arrays))
    for _ in range(effort.rounds):
        states, worths = small_changes(arrays, best.courses, effort.changes)
        tried = _best_of(simulate_schedule(arrays, states, worths, effort.ends_each), arrays)
        if tried.score <= best.score + SAME:
            break
        best = tried
    return best


def _scores(courses: Courses, arrays: WindowArrays) -> Floats:
    after = arrays.after_us / arrays.left_us * _first_parts(arrays)
    scores: Floats = (courses.values + after * courses.reached) @ arrays.weight
    return scores


def _best_of(courses: Courses, arrays: WindowArrays) -> FoundCourse:
    scores = _scores(courses, arrays)
    index = int(scores.argmax())
    return FoundCourse(courses.select_courses(slice(index, index + 1)), float(scores[index]))


def _better(first: FoundCourse, second: FoundCourse) -> FoundCourse:
    return second if second.score > first.score + SAME else first


def offers_golden(view: WindowView) -> bool:
    """Returns whether a λ of any stream is of the golden detector."""
    return any(option.config.by_golden for stream in view.streams for option in stream.inference_options)


def split_by_detector(view: WindowView, phase: Phase) -> WindowView:
    """Returns the view in which each stream has the λ of one detector, the one that answers it in a phase.

    A stream that retrains keeps those of its edge model, even if the golden detector answers meanwhile.
    """
    given = zip(view.streams, phase.assignments, strict=True)
    streams = [
        _of_one(stream, one.inference.by_golden and not one.retrain_share_milli) for stream, one in given
    ]
    return replace(view, streams=tuple(streams))


def _of_one(stream: StreamView, by_golden: bool) -> StreamView:
    options = tuple(one for one in stream.inference_options if one.config.by_golden == by_golden)
    if not by_golden:
        return replace(stream, inference_options=options)
    # The golden detector is right by definition.
    return replace(stream, accuracy=1.0, inference_options=options, retrain_options=())
