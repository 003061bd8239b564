"""Courses of a window: which retrainings run when, given a γ and a worth for each.

The worth of a retraining is what one GPU-second of it would add to the objective if it came for free. In
every phase each quantum goes to the job that gains most at that moment: to an inference, by the accuracy
that it adds now, or to a retraining, by its worth times the speed that it adds. Worths thus decide which
streams retrain first, how many retrain together, and how much of the GPUs retraining takes from inference.
With a linear speed curve the retraining with the highest worth takes a whole GPU if it can; with a steep one
several share it. A phase ends with a completion, and the shares are then given out anew.

The right worths follow from a condition on the optimum. With all retrainings done, inference brings h_end at
any moment. If in a phase it brings h, and retrainings advance at speeds s, then at the optimum

    h + sum over retrainings of worth · s = h_end        in every phase:

the Hamiltonian of a process whose end is fixed and whose rules do not depend on time is constant along an
optimal course (Pontryagin's principle). Solved from the end backwards, this gives one worth per completion:
that of the retraining that completes. ``settled_worths`` solves it for a course that was played; since the
left side is convex in that worth, alternating between playing and settling is Newton's method and takes a
few rounds.
"""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from ekya.core.units import US_PER_S
from ekya.planning.schedulers.checkpoint_gain import mean_parts
from ekya.planning.schedulers.objective import DONE_GPU_S
from ekya.planning.schedulers.window_arrays import WindowArrays

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
Flags = NDArray[np.bool_]

LEFTOVER_ROUNDS = 3
"""Number of jobs that may share the quanta into which no whole segment fits."""

RUNNING_TO_ONE = 8
"""Running retrainings per completion that may pass without a filling, where ``ends_each`` allows several."""


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """Time between two fillings, for C courses.

    Attributes:
        shares: (C, 2·V) quanta of each job.
        speed: (C, V) speed of each retraining.
        serving: (C,) weighted accuracy of inference at the beginning.
        lasts_us: (C,) duration.
        ends: (C, V) whether each retraining completes at the end.
    """

    shares: Ints
    speed: Floats
    serving: Floats
    lasts_us: Floats
    ends: Flags

    def select_courses(self, index: Ints | slice) -> "Stretch":
        """Returns the stretch for some of the courses."""
        return Stretch(*(getattr(self, field.name)[index] for field in fields(self)))


@dataclass(frozen=True, slots=True, eq=False)
class Courses:
    """C courses of one window.

    Attributes:
        states: (C, V) the state that each stream's retraining leads to; 0 for none.
        worths: (C, V) worth of a GPU-second of each retraining.
        values: (C, V) each stream's mean inference accuracy until the window's end.
        done_us: (C, V) completion times of retrainings, from now; infinite if not in this window.
        unfinished: (C, V) retrainings that gain something by their checkpoints but do not complete.
        reached: (C, V) accuracy of the serving model at the window's end, every frame analysed.
        parts: (C, V) part of the accuracy that inference leaves at the end.
        stretches: in order of time.
    """

    states: Ints
    worths: Floats
    values: Floats
    done_us: Floats
    unfinished: Flags
    reached: Floats
    parts: Floats
    stretches: tuple[Stretch, ...]

    def select_courses(self, index: Ints | slice) -> "Courses":
        """Returns some of the courses."""
        stretches = tuple(stretch.select_courses(index) for stretch in self.stretches)
        arrays = {f.name: getattr(self, f.name)[index] for f in fields(self) if f.name != "stretches"}
        return Courses(**arrays, stretches=stretches)


def simulate_schedule(arrays: WindowArrays, states: Ints, worths: Floats, ends_each: int = 1) -> Courses:
    """Plays courses to the window's end, by the physics of ``objective.evaluate``.

    Args:
        arrays: the view.
        states: (C, V) as in ``Courses``.
        worths: (C, V); a retraining that is worth nothing does not run.
        ends_each: maximum of completions between two fillings. With more than 1, a retraining that completes
            in between leaves its share idle until the next filling.
    """
    played = _PlayedCourses(arrays, states, worths)
    stretches = []
    going_on = True
    while going_on:
        shares = greedy_shares(arrays, played.hull, played.pull)
        stretches.append(played.advance_to_next_end(shares, ends_each))
        going_on = bool(stretches[-1].ends.any())
    values = played.area / arrays.left_us
    return Courses(
        states,
        worths,
        values,
        played.done_us,
        played.unfinished(),
        played.accuracies_at_end(),
        played.part,
        tuple(stretches),
    )


class _PlayedCourses:
    """State of courses while they are played."""

    def __init__(self, arrays: WindowArrays, states: Ints, worths: Floats) -> None:
        count, streams = states.shape
        reached = arrays.flat_indices(states)
        runs = (states > 0) & (worths > 0.0)
        accuracy = np.repeat(arrays.accuracy[None, :, 0], count, axis=0)
        self._arrays = arrays
        self._accuracy = accuracy
        self._after = arrays.accuracy.take(reached)
        self._pull_after = self._after * arrays.weight
        self._hull_after = arrays.hull.take(reached)
        self._values = arrays.value.ravel()
        self._job = np.arange(2 * streams) * arrays.value.shape[1]
        self._shares = np.full((count, 2 * streams), -1)
        self._left_gpu_s = np.where(runs, arrays.work_gpu_s.take(reached), np.inf)
        self._early = _Early(arrays, reached, runs) if arrays.bend.any() else None
        self._speed = np.zeros((count, streams))
        self._ends_us = np.full((count, streams), np.inf)
        self._since_us = np.zeros((count, streams))
        self._now_us = np.zeros((count, 1))
        self.area = np.zeros((count, streams))
        self.part = np.zeros((count, streams))
        self.done_us = np.full((count, streams), np.inf)
        self.pull = np.concatenate([accuracy * arrays.weight, np.where(runs, worths, 0.0)], axis=1)
        self.hull = np.full((count, 2 * streams), arrays.training_hull)
        self.hull[:, :streams] = arrays.hull[:, 0]

    def advance_to_next_end(self, shares: Ints, ends_each: int) -> Stretch:
        """Advances through at most ``ends_each`` completions, or to the window's end."""
        self._give(shares)
        next_us = np.minimum(_next_ends(self._ends_us, ends_each), self._arrays.left_us)[:, None]
        lasts_us = next_us - self._now_us
        ends = self._ends_us <= next_us
        serving = np.einsum("cv,cv->c", self.pull[:, : ends.shape[1]], self.part)
        self.area += self._accuracy * self.part * lasts_us
        early_us = np.zeros(1)
        if ends_each > 1:
            early_us = np.where(ends, next_us - np.where(ends, self._ends_us, 0.0), 0.0)
            self.area += (self._after - self._accuracy) * self.part * early_us
        if self._early is not None:
            runs_us = lasts_us - early_us
            self.area += self._early.gains_so_far(self._left(self._now_us + runs_us)) * self.part * runs_us
            self._early.drop_finished(ends)
        self._now_us = next_us
        self._finish(ends)
        return Stretch(shares, self._speed, serving, lasts_us[:, 0], ends)

    def unfinished(self) -> Flags:
        """Returns ``Courses.unfinished``."""
        if self._early is None:
            return np.zeros(self.area.shape, np.bool_)
        return self._early.unfinished()

    def accuracies_at_end(self) -> Floats:
        """Returns ``Courses.reached``; checkpoints of a retraining that does not complete are left out."""
        return self._accuracy

    def _left(self, at_us: Floats) -> Floats:
        """(C, V) GPU-seconds to do, at moments of the stretch in progress."""
        left: Floats = self._left_gpu_s - self._speed * (at_us - self._since_us) / US_PER_S
        return left

    def _give(self, shares: Ints) -> None:
        """Applies shares; the remaining work is computed anew only for streams whose shares changed.

        The objective does the same, and completions have to agree with it to the microsecond.
        """
        streams = self.area.shape[1]
        changed = shares != self._shares
        changed = changed[:, :streams] | changed[:, streams:]
        left_gpu_s = self._left(self._now_us)
        left_gpu_s *= left_gpu_s >= DONE_GPU_S
        np.copyto(self._left_gpu_s, left_gpu_s, where=changed)
        np.copyto(self._since_us, self._now_us, where=changed)
        self._shares = shares
        got = self._values.take(shares + self._job)
        self.part, self._speed = got[:, :streams], got[:, streams:]
        lasts_us = np.full(changed.shape, np.inf)
        np.divide(self._left_gpu_s, self._speed, out=lasts_us, where=self._speed > 0.0)
        lasts_us *= US_PER_S
        np.copyto(self._ends_us, self._since_us + np.ceil(lasts_us), where=changed)

    def _finish(self, ends: Flags) -> None:
        streams = ends.shape[1]
        np.copyto(self.done_us, self._ends_us, where=ends)
        np.copyto(self._ends_us, np.inf, where=ends)
        np.copyto(self._left_gpu_s, np.inf, where=ends)
        np.copyto(self._accuracy, self._after, where=ends)
        np.copyto(self.pull[:, :streams], self._pull_after, where=ends)
        np.copyto(self.pull[:, streams:], 0.0, where=ends)
        np.copyto(self.hull[:, :streams], self._hull_after, where=ends)


class _Early:
    """Gains from checkpoints before their retrainings end (``checkpoint_gain``), for C courses."""

    def __init__(self, arrays: WindowArrays, reached: Ints, runs: Flags) -> None:
        bend, work_gpu_s = arrays.bend.take(reached), arrays.work_gpu_s.take(reached)
        gain = arrays.accuracy.take(reached) - arrays.accuracy[:, 0]
        rises = runs & (bend != 0.0) & (work_gpu_s > 0.0)
        self._gain = np.where(rises, gain, 0.0)
        self._bend = np.where(rises, bend, 1.0)
        self._work_gpu_s = np.where(rises, work_gpu_s, 1.0)
        self._done = np.zeros(reached.shape)

    def gains_so_far(self, left_gpu_s: Floats) -> Floats:
        """Returns (C, V) the mean accuracy gained since the last call, given the work that is left now."""
        start = self._done
        self._done = np.maximum(1.0 - left_gpu_s / self._work_gpu_s, start)
        found: Floats = self._gain * mean_parts(self._bend, start, self._done)
        return found

    def drop_finished(self, ends: Flags) -> None:
        """Ends these retrainings; their gain counts in full from now on."""
        self._gain = np.where(ends, 0.0, self._gain)

    def unfinished(self) -> Flags:
        """Returns (C, V) whether checkpoints gained something without a completion."""
        found: Flags = (self._gain > 0.0) & (self._done > 0.0)
        return found


def _next_ends(ends_us: Floats, ends_each: int) -> Floats:
    """Returns (C,) the time of the last completion that is allowed before the next filling."""
    if ends_each == 1:
        first: Floats = ends_us.min(axis=1)
        return first
    running = np.isfinite(ends_us).sum(axis=1)
    count = np.clip(running // RUNNING_TO_ONE, 1, ends_each)
    last: Floats = np.sort(ends_us, axis=1)[np.arange(len(ends_us)), count - 1]
    return last


def greedy_shares(arrays: WindowArrays, hull: Ints, pull: Floats) -> Ints:
    """Returns the shares (C, jobs) in quanta that gain most at one moment.

    Args:
        arrays: the view.
        hull: (C, jobs) index of each job's hull.
        pull: (C, jobs) what a unit of a job's value counts; 0 gives the job nothing.
    """
    shares: Ints = arrays.hulls.floor.take(hull)
    left = arrays.quanta - shares.sum(axis=1)
    if left.min() < 0:
        hull = _without_floors(arrays, hull, shares, left)
        shares = arrays.hulls.floor.take(hull)
        left = arrays.quanta - shares.sum(axis=1)
    count, jobs = hull.shape
    size = arrays.hulls.size.take(hull, axis=0).reshape(count, -1)
    # Equal rises are ordered by job, since argsort is not stable.
    rise = (arrays.hulls.rise.take(hull, axis=0) * pull[:, :, None]).reshape(count, -1) * arrays.tie_breaks
    order = np.argsort(-rise, axis=1) + np.arange(0, rise.size, rise.shape[1])[:, None]
    wanted = np.where(rise > 0.0, size, 0).take(order)
    ends = wanted.cumsum(axis=1)
    size.put(order, np.where(ends <= left[:, None], wanted, 0))
    shares += np.einsum("cjs->cj", size.reshape(count, jobs, -1))
    _give_leftovers(arrays, shares, pull)
    return shares


def _without_floors(arrays: WindowArrays, hull: Ints, floor: Ints, left: Ints) -> Ints:
    """Returns hulls with which the floors fit: those of the streams that need most are given up."""
    fitting = hull.copy()
    for course in np.nonzero(left < 0)[0]:
        order = np.argsort(floor[course], kind="stable")
        beyond = order[np.cumsum(floor[course][order]) > arrays.quanta]
        fitting[course, beyond] = arrays.floorless[beyond]
    return fitting


def _give_leftovers(arrays: WindowArrays, shares: Ints, pull: Floats) -> None:
    """Gives what is left to the job that gains most by it, up to ``LEFTOVER_ROUNDS`` times."""
    job = np.arange(shares.shape[1]) * arrays.value.shape[1]
    top = arrays.value.shape[1] - 1
    for _ in range(LEFTOVER_ROUNDS):
        left = arrays.quanta - shares.sum(axis=1)
        if not left.any():
            return
        reach = np.minimum(shares + left[:, None], top) + job
        gain = (arrays.value.take(reach) - arrays.value.take(shares + job)) * pull
        if gain.max() <= 0.0:
            return
        gains = np.flatnonzero(gain.max(axis=1) > 0.0)
        best = gain.argmax(axis=1)[gains]
        shares[gains, best] = arrays.enough.take(reach[gains, best])


def settled_worths(courses: Courses) -> Floats:
    """Returns (C, V) worths at which every completion of these courses is worth its time.

    A retraining that did not complete is worth nothing, unless its checkpoints gain something: then it keeps
    its worth.
    """
    worth = np.where(np.isfinite(courses.done_us) | courses.unfinished, courses.worths, 0.0)
    end = courses.stretches[0].serving
    for stretch in courses.stretches:
        end = np.where(stretch.lasts_us > 0.0, stretch.serving, end)
    for stretch in reversed(courses.stretches):
        yields = worth * stretch.speed
        ending = np.where(stretch.ends, yields, 0.0).sum(axis=1)
        missing = end - stretch.serving - (yields.sum(axis=1) - ending)
        factor = np.maximum(missing, 0.0) / np.maximum(ending, 1e-12)
        worth = np.where(stretch.ends, worth * factor[:, None], worth)
    return worth
