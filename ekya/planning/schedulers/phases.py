"""Builds a plan from the shares of every phase, with a reason for every stream in each phase."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ekya.core.plan import Assignment, Phase, Plan
from ekya.core.units import us_to_seconds
from ekya.core.view import RetrainOption, StreamView, WindowView
from ekya.planning.schedulers.objective import evaluate
from ekya.planning.schedulers.pick import RetrainChoice, StreamChoices
from ekya.planning.schedulers.reasons import assignment
from ekya.planning.schedulers.schedule_simulation import Courses
from ekya.planning.schedulers.window_arrays import WindowArrays

Ints = NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class DraftPhase:
    """One phase without reasons.

    Attributes:
        start_us: from now.
        shares_milli: (2·V,) of the inferences and then of the retrainings, streams by id.
    """

    start_us: int
    shares_milli: Ints


@dataclass(frozen=True, slots=True)
class StreamDraft:
    """Retraining of one stream in a draft.

    Attributes:
        stream: as the view has it.
        option: the γ that it runs at some time; None for none.
        done_us: completion time of that γ, from now; None if not in this window.
    """

    stream: StreamView
    option: RetrainOption | None
    done_us: int | None


def plan_of_course(view: WindowView, board: WindowArrays, course: Courses) -> Plan:
    """Returns the plan of a course (the only one in ``course``), with one phase per completion.

    A retraining that would not complete in the window, and gains nothing before, is not begun; one that runs
    already goes on.
    """
    begun = np.isfinite(course.done_us[0]) | course.unfinished[0] | board.locked
    streams = [
        StreamDraft(stream, known[state] if begins else None, int(done_us) if np.isfinite(done_us) else None)
        for stream, known, state, begins, done_us in zip(
            board.streams, board.options, course.states[0], begun, course.done_us[0], strict=True
        )
    ]
    return plan_of_draft(view, streams, list(_phases_of_course(view, course, begun)))


def _phases_of_course(view: WindowView, course: Courses, begun: NDArray[np.bool_]) -> Iterator[DraftPhase]:
    start_us = 0
    for stretch in course.stretches:
        shares = stretch.shares[0] * view.quantum_milli
        shares[len(begun) :][~begun] = 0
        phase = DraftPhase(start_us, shares)
        completions = set(course.done_us[0][stretch.ends[0]].tolist())
        yield from [phase] * max(1, len(completions))
        start_us += int(stretch.lasts_us[0])


def plan_of_draft(view: WindowView, streams: Sequence[StreamDraft], phases: Sequence[DraftPhase]) -> Plan:
    """Returns the plan with these shares; ``streams`` are all streams of the view, by id."""
    writers = [_Writer(view, stream) for stream in streams]
    written = []
    latest: DraftPhase | None = None
    for phase in phases:
        if phase is not latest:
            shares_milli = phase.shares_milli.tolist()
            shares = zip(writers, shares_milli[: len(writers)], shares_milli[len(writers) :], strict=True)
            made = Phase(tuple(one.write(phase.start_us, *both) for one, *both in shares))
            latest = phase
        written.append(made)
    return Plan(tuple(written), evaluate(view, written).score)


class _Writer:
    """Writes one stream's assignments, phase after phase; an unchanged assignment is the same object."""

    def __init__(self, view: WindowView, draft: StreamDraft) -> None:
        reached = max(draft.option.accuracy_after if draft.option else 0.0, draft.stream.accuracy)
        after = replace(draft.stream, accuracy=reached, retrain_options=(), running=None)
        self._draft = draft
        self._now_us = view.now_us
        self._begun = draft.stream.running is not None
        self._before = StreamChoices(view, draft.stream)
        self._after = StreamChoices(view, after)
        self._key: tuple[int, int, bool] | None = None
        self._latest: Assignment | None = None

    def write(self, start_us: int, inference_milli: int, retrain_milli: int) -> Assignment:
        """Returns the stream's assignment in a phase; phases are written in order."""
        done = self._draft.done_us is not None and self._draft.done_us <= start_us
        key = (inference_milli, retrain_milli, done)
        if self._latest is None or self._key != key:
            self._key = key
            self._latest = self._assignment(inference_milli, retrain_milli, done)
        return self._latest

    def _assignment(self, inference_milli: int, retrain_milli: int, done: bool) -> Assignment:
        choices = self._after if done else self._before
        self._begun = self._begun or retrain_milli > 0
        option = self._draft.option if self._begun and not done else None
        done_us = self._draft.done_us
        return assignment(
            choices,
            RetrainChoice(
                option, choices.stream.accuracy, None if done_us is None else self._now_us + done_us
            ),
            retrain_milli,
            choices.inference(inference_milli),
            inference_milli,
            why_not=self._why_not_yet(),
        )

    def _why_not_yet(self) -> str | None:
        option, done_us = self._draft.option, self._draft.done_us
        if self._begun or option is None or done_us is None:
            return None
        return (
            f"others gain more per GPU-second and come first; its turn ({option.config.name}) "
            f"ends after {us_to_seconds(done_us):.0f} s"
        )
