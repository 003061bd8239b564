"""Builds a plan from the shares of every phase, with a reason for every stream in each phase."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ekya.core.plan import Assignment, Phase, Plan
from ekya.core.units import us_to_seconds
from ekya.core.view import RetrainOption, StreamView, WindowView
from ekya.planning.schedulers.objective import evaluate_phases
from ekya.planning.schedulers.pick import RetrainChoice, StreamChoices
from ekya.planning.schedulers.reasons import build_assignment
from ekya.planning.schedulers.schedule_simulation import Courses
from ekya.planning.schedulers.window_arrays import WindowArrays


def plan_of_course(view: WindowView, arrays: WindowArrays, course: Courses) -> Plan:
    """Returns the plan of a course (the only one in ``course``), with one phase per completion.

    A retraining that would not complete in the window, and gains nothing before, is not begun; one that runs
    already goes on.
    """
    begun = np.isfinite(course.done_us[0]) | course.unfinished[0] | arrays.locked
    writers = [
        AssignmentWriter(
            view, stream, known[state] if begins else None, int(done_us) if np.isfinite(done_us) else None
        )
        for stream, known, state, begins, done_us in zip(
            view.streams, arrays.options, course.states[0], begun, course.done_us[0], strict=True
        )
    ]
    phases: list[Phase] = []
    start_us = 0
    for stretch in course.stretches:
        inference_milli, retrain_milli = np.split(stretch.shares[0] * view.quantum_milli, 2)
        retrain_milli = np.where(begun, retrain_milli, 0)
        phase = written_phase(writers, start_us, inference_milli.tolist(), retrain_milli.tolist())
        completions = set(course.done_us[0][stretch.ends[0]].tolist())
        # Each completion ends a phase; those in the middle of a stretch leave its shares as they are.
        phases += [phase] * max(1, len(completions))
        start_us += int(stretch.lasts_us[0])
    return Plan(tuple(phases), evaluate_phases(view, phases).score)


class AssignmentWriter:
    """Writes one stream's assignments, phase after phase; an unchanged assignment is the same object."""

    def __init__(
        self, view: WindowView, stream: StreamView, option: RetrainOption | None, done_us: int | None
    ) -> None:
        """Begins a plan.

        Args:
            view: the view.
            stream: as the view has it.
            option: the γ that it runs at some time; None for none.
            done_us: completion time of that γ, from now; None if not in this window.
        """
        reached = max(option.accuracy_after if option else 0.0, stream.accuracy)
        after = replace(stream, accuracy=reached, retrain_options=(), running=None)
        self._now_us = view.now_us
        self._option, self._done_us = option, done_us
        self._begun = stream.running is not None
        self._before = StreamChoices(view, stream)
        self._after = StreamChoices(view, after)
        self._key: tuple[int, int, bool] | None = None
        self._latest: Assignment | None = None

    def write_assignment(self, start_us: int, inference_milli: int, retrain_milli: int) -> Assignment:
        """Returns the stream's assignment in a phase; phases are written in order."""
        done = self._done_us is not None and self._done_us <= start_us
        key = (inference_milli, retrain_milli, done)
        if self._latest is None or self._key != key:
            self._key = key
            self._latest = self._assignment(inference_milli, retrain_milli, done)
        return self._latest

    def _assignment(self, inference_milli: int, retrain_milli: int, done: bool) -> Assignment:
        choices = self._after if done else self._before
        self._begun = self._begun or retrain_milli > 0
        option = self._option if self._begun and not done else None
        completes_us = None if self._done_us is None else self._now_us + self._done_us
        why_not = None
        if not self._begun and self._option is not None and self._done_us is not None:
            why_not = (
                f"others gain more per GPU-second and come first; its turn ({self._option.config.name}) "
                f"ends after {us_to_seconds(self._done_us):.0f} s"
            )
        retrain = RetrainChoice(option, choices.stream.accuracy, completes_us)
        return build_assignment(choices, retrain, retrain_milli, inference_milli, why_not=why_not)


def written_phase(
    writers: Sequence[AssignmentWriter],
    start_us: int,
    inference_milli: Sequence[int],
    retrain_milli: Sequence[int],
) -> Phase:
    """Returns the phase that begins ``start_us`` from now, with the shares of the writers' streams."""
    shares = zip(writers, inference_milli, retrain_milli, strict=True)
    return Phase(tuple(writer.write_assignment(start_us, *both) for writer, *both in shares))
