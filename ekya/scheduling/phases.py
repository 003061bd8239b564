"""From a course to a plan: its phases, with a reason for every stream in each."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ekya.core.plan import Assignment, Phase, Plan
from ekya.core.units import us_to_seconds
from ekya.core.view import RetrainOption, WindowView
from ekya.scheduling.board import Board
from ekya.scheduling.course import Courses, Stretch
from ekya.scheduling.objective import evaluate
from ekya.scheduling.pick import RetrainChoice, StreamChoices
from ekya.scheduling.reasons import assignment


def plan_of_course(view: WindowView, board: Board, course: Courses) -> Plan:
    """The plan that takes a course (the only one in ``course``): one phase a completion."""
    streams = [_StreamPhases(view, board, course, v) for v in range(len(board.streams))]
    phases = []
    for stretch, start_us in _starts(course):
        phase = Phase(tuple(stream.next(stretch, start_us) for stream in streams))
        completions = np.unique(course.done_us[0][stretch.ends[0]])
        phases += [phase] * max(1, len(completions))
    return Plan(tuple(phases), evaluate(view, phases).score)


def _starts(course: Courses) -> Iterator[tuple[Stretch, int]]:
    start_us = 0
    for stretch in course.stretches:
        yield stretch, start_us
        start_us += int(stretch.lasts_us[0])
        if not stretch.ends[0].any():
            return


class _StreamPhases:
    """One stream's assignments, phase after phase; while nothing changes it is the same one."""

    def __init__(self, view: WindowView, board: Board, course: Courses, v: int) -> None:
        stream = board.streams[v]
        state = int(course.states[0, v])
        done_us = float(course.done_us[0, v])
        self._v = v
        self._quantum_milli = view.quantum_milli
        self._now_us = view.now_us
        self._option: RetrainOption | None = board.options[v][state]
        self._done_us: int | None = int(done_us) if np.isfinite(done_us) else None
        self._begun = stream.running is not None
        self._before = StreamChoices(view, stream)
        after = replace(stream, accuracy=float(board.accuracy[v, state]), retrain_options=(), running=None)
        self._after = StreamChoices(view, after)
        self._latest: tuple[tuple[int, int, bool], Assignment] | None = None

    def next(self, stretch: Stretch, start_us: int) -> Assignment:
        """What the stream gets in a stretch; they are asked for in order."""
        shares = stretch.shares[0]
        inference = int(shares[self._v]) * self._quantum_milli
        retraining = int(shares[self._v + len(shares) // 2]) * self._quantum_milli
        done = self._done_us is not None and self._done_us <= start_us
        key = (inference, retraining, done)
        if self._latest is None or self._latest[0] != key:
            self._latest = key, self._assignment(inference, retraining, done)
        return self._latest[1]

    def _assignment(self, inference_milli: int, retrain_milli: int, done: bool) -> Assignment:
        choices = self._after if done else self._before
        self._begun = self._begun or retrain_milli > 0
        option = self._option if self._begun and not done else None
        completes_us = None if self._done_us is None else self._now_us + self._done_us
        return assignment(
            choices,
            RetrainChoice(option, choices.stream.accuracy, completes_us),
            retrain_milli,
            choices.inference(inference_milli),
            inference_milli,
            why_not=self._why_not_yet(),
        )

    def _why_not_yet(self) -> str | None:
        if self._begun or self._option is None or self._done_us is None:
            return None
        after_s = us_to_seconds(self._done_us)
        return (
            f"others gain more per GPU-second and come first; its turn ({self._option.config.name}) "
            f"ends after {after_s:.0f} s"
        )
