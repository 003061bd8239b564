"""Searches for the best course of a window: streams that retrain, their γ, their order and their concurrency.

A few initial courses differ in how much work they take on and in the part of the GPUs that they give to it.
Each is played, its worths are settled and its γ chosen again at these worths; the best result is then
changed in small ways as long as it improves. Effort is limited by the number of courses played, never by
time, so the same view gives the same course.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekya.planning.schedulers.pick import SAME
from ekya.planning.schedulers.schedule_simulation import Courses, settled_worths, simulate_schedule
from ekya.planning.schedulers.serial_changes import chosen_again, initial_courses, small_changes
from ekya.planning.schedulers.window_arrays import WindowArrays

Floats = NDArray[np.float64]


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
        return Effort((0.25, 0.7), kept=3, settlings=1, rounds=2, changes=10, ends_each=1)
    paces = (0.03, 0.1, 0.3)
    if streams <= 160:
        return Effort(paces, kept=3, settlings=4, rounds=2, changes=6, ends_each=4)
    return Effort(paces, kept=3, settlings=3, rounds=0, changes=0, ends_each=8)


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """A course, the only one in ``courses``, and its score."""

    courses: Courses
    score: float


def best_course(arrays: WindowArrays, effort: Effort) -> Found:
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
    return courses.values @ arrays.weight


def _best_of(courses: Courses, arrays: WindowArrays) -> Found:
    scores = _scores(courses, arrays)
    index = int(scores.argmax())
    return Found(courses.select_courses(slice(index, index + 1)), float(scores[index]))


def _better(first: Found, second: Found) -> Found:
    return second if second.score > first.score + SAME else first
