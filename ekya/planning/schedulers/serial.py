"""Serial scheduler: few retrainings at a time, on large shares, in order of gain per GPU-second.

A thief holds its shares to the window's end, so all retrainings run together on slivers and all complete
late. One after the other, each on all that retraining gets, the first completes much sooner and the last no
later (Smith's rule, where the speed is linear in the share); where a sliver of a GPU is faster than its
share, some run together. ``schedule_simulation`` decides this; ``best_course`` finds the γ, the
streams and the order: a few initial courses differ in how much work they take on and in the part of the GPUs
that they give to it. Each is played, its worths are settled and its γ chosen again at these worths; the best
result is then changed in small ways as long as it improves. Effort is limited by the number of courses
played, never by time, so the same view gives the same course.

The plan has a phase per completion, and inference shares are chosen anew in each. a_MIN and the latency
limits are kept in every phase for as many streams as possible. Where λ of the golden detector are offered,
``exact`` says which streams it answers: a planner that looks for courses of a window multiplies what γ and λ
are worth (``objective.py``), so it is given each stream with the λ of one detector only.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ekya.core.plan import Phase, Plan
from ekya.core.view import StreamView, WindowView
from ekya.planning.schedulers.exact import Exact
from ekya.planning.schedulers.phases import plan_of_course
from ekya.planning.schedulers.pick import SAME
from ekya.planning.schedulers.schedule_simulation import Courses, settled_worths, simulate_schedule
from ekya.planning.schedulers.scheduler import Needs
from ekya.planning.schedulers.serial_changes import chosen_again, initial_courses, small_changes
from ekya.planning.schedulers.window_arrays import WindowArrays, window_arrays_of

Floats = NDArray[np.float64]


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
        return Effort((0.25, 0.7), kept=3, settlings=1, rounds=2, changes=10, ends_each=1)
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
    return courses.values @ arrays.weight


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
