"""The one objective that every scheduler, forecast and test calls (paper §3.2, §4.1, Eq. 1).

For stream v at time t, with the serving model's accuracy a_v(t) when every frame is analysed, λ with
relative accuracy ρ and needed share n, and inference share I, the instantaneous inference accuracy is

    A_v(t) = a_v(t) · ρ · min(1, speed(I) / speed(n))

because below the needed share frames are dropped and accuracy falls in proportion to how much slower
inference is (paper §3.2: 75% of the GPU that inference needs takes 65% down to 49%). Where λ is of the golden
detector, which does not depend on the serving model, 1 takes the place of a_v(t)
(``InferenceOption.full_accuracy``). A retraining with g
GPU-seconds to do, at share R, advances at speed(R) GPU-seconds a second and so takes g / speed(R) seconds
while R stays; it keeps its progress when R changes. On completion a_v becomes the larger of a_v and the
option's ``accuracy_after``, because weights worse than the current ones never serve; a retraining that does
not complete by the window's end E changes nothing. Where its checkpoints serve (``early_part`` above 0,
paper §5), a_v grows with the work done, by the curve in ``checkpoint_gain.py``, and a retraining that does
not complete keeps the accuracy that it reached. Weights that are trained elsewhere need no share: their
retraining completes when they arrive. From now until E a stream's value is

    1 / (E − now) · ∫ A_v(t) dt

and the objective is the mean of the values, each counted by its stream's weight.

A phase lasts until the first completion among its retrainings, the last phase until E. Completions round up
to a whole microsecond. With one phase a stream's integral is a product of a part that depends on (γ, R) and
a part that depends on (λ, I): ``mean_after_retraining`` and ``analysed_part``.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from ekya.core.configs import RetrainConfig
from ekya.core.plan import Assignment, Phase
from ekya.core.speed import SpeedCurve
from ekya.core.units import FULL_GPU_MILLI, US_PER_S, StreamId
from ekya.core.view import InferenceOption, RetrainOption, StreamView, WindowView
from ekya.core.weights import Elsewhere
from ekya.planning.schedulers.checkpoint_gain import bend_of, mean_part

DONE_GPU_S = 1e-9
"""Remaining work below this is a rounding error."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Value of phases.

    Attributes:
        score: the objective, in [0, 1]; 0 without streams.
        per_stream: each stream's mean inference accuracy until the window's end, sorted by id.
        completions_us: completion times of retrainings in the window, by time and then by id.
        at_end: the weighted mean of the streams' inference accuracy when the window ends; 0 without streams.
    """

    score: float
    per_stream: tuple[tuple[StreamId, float], ...]
    completions_us: tuple[tuple[StreamId, int], ...]
    at_end: float


def analysed_part(option: InferenceOption, share_milli: int, speed: SpeedCurve) -> float:
    """Returns ρ · min(1, speed(I) / speed(n)): part of its full accuracy that λ leaves at a share.

    It is in [0, 1]; ``speed`` is that of inference.
    """
    if option.share_needed_milli <= 0:
        return option.relative_accuracy
    usable = min(share_milli, FULL_GPU_MILLI)
    kept = speed.linear_milli(usable) / speed.linear_milli(option.share_needed_milli)
    return option.relative_accuracy * min(1.0, kept)


def completion_us(start_us: int, gpu_s: float, speed: float) -> int | None:
    """Returns when ``gpu_s`` of work begun at ``start_us`` is done at a speed; None if never."""
    return start_us + math.ceil(gpu_s / speed * US_PER_S) if speed > 0.0 else None


def mean_after_retraining(view: WindowView, accuracy: float, option: RetrainOption, speed: float) -> float:
    """Returns the mean accuracy of the serving model over the rest of the window, every frame analysed.

    Until the retraining at this speed completes, ``accuracy`` serves, raised by checkpoints if these serve;
    from then on ``option.accuracy_after`` if that is more.
    """
    left_us = view.window_end_us - view.now_us
    end_us = completion_us(view.now_us, option.gpu_s, speed)
    if end_us is None or left_us <= 0:
        return accuracy
    gain = max(option.accuracy_after - accuracy, 0.0)
    if end_us >= view.window_end_us:
        return accuracy + gain * _part_by_the_end(option, speed, left_us)
    served_us = view.window_end_us - end_us
    if option.early_part > 0.0:
        return accuracy + gain * ((served_us + option.early_part * (end_us - view.now_us)) / left_us)
    return accuracy + gain * (served_us / left_us)


def _part_by_the_end(option: RetrainOption, speed: float, left_us: int) -> float:
    """Returns the mean part of the gain that checkpoints bring in a window that ends before the γ does."""
    if option.early_part <= 0.0:
        return 0.0
    done = min(speed * left_us / US_PER_S / option.gpu_s, 1.0)
    return mean_part(bend_of(option.early_part), 0.0, done)


def weighted_mean(view: WindowView, values: Mapping[StreamId, float]) -> float:
    """Returns the mean of the streams' values by their weights; 0 without streams."""
    if not view.streams:
        return 0.0
    total = sum(stream.weight for stream in view.streams)
    return sum(stream.weight * values[stream.stream] for stream in view.streams) / total


def evaluate_phases(view: WindowView, phases: Sequence[Phase]) -> Evaluation:
    """Returns the objective for ``phases`` from ``view.now_us`` to the window's end.

    Raises:
        ValueError: a phase does not name every stream once, or names a γ or λ that its stream was not
            offered, or a second γ for one stream (Eq. 1, third constraint; a running retraining's γ is
            locked, paper §5).
    """
    if not phases:
        raise ValueError("a plan has at least one phase")
    played = _PlayedPhases(view)
    before: Phase | None = None
    for index, phase in enumerate(phases):
        played.begin_phase(phase, before)
        played.run(until_completion=index < len(phases) - 1)
        before = phase
    values = played.values()
    return Evaluation(
        weighted_mean(view, values),
        tuple(values.items()),
        tuple(played.completions),
        weighted_mean(view, played.values_at_end()),
    )


def worth_of_phases(view: WindowView, phases: Sequence[Phase]) -> float:
    """Returns the objective for phases, and what the accuracy at the window's end is worth after it."""
    found = evaluate_phases(view, phases)
    return found.score + view.after_us / max(view.window_end_us - view.now_us, 1) * found.at_end


class _PlayedPhases:
    """Plays phases forward, from completion to completion.

    A stream is updated only when it completes or when a phase changes its assignment: with a thousand
    streams and a phase per completion, updating all of them every time would take most of the planning time.
    """

    def __init__(self, view: WindowView) -> None:
        self._view = view
        self._now_us = view.now_us
        self._runs = {stream.stream: _StreamRun(stream, view) for stream in view.streams}
        self._ends: list[tuple[int, StreamId]] = []
        self.completions: list[tuple[StreamId, int]] = []

    def begin_phase(self, phase: Phase, before: Phase | None) -> None:
        """Applies a phase to every stream; ``before`` is the phase that ends now."""
        named = [assignment.stream for assignment in phase.assignments]
        if named != list(self._runs):
            raise ValueError("a phase names every stream of the view once")
        old = before.assignments if before else (None,) * len(named)
        for assignment, last in zip(phase.assignments, old, strict=True):
            # By identity, which costs nothing: an assignment that stays is the same object (``phases``).
            if assignment is not last:
                run = self._runs[assignment.stream]
                run.begin_assignment(assignment, self._now_us)
                if run.end_us is not None:
                    heappush(self._ends, (run.end_us, assignment.stream))

    def run(self, *, until_completion: bool) -> None:
        """Advances to the next completion, or through all of them to the window's end."""
        while self._now_us < self._view.window_end_us:
            # Ends that a later assignment has moved are still in the heap.
            while self._ends and self._runs[self._ends[0][1]].end_us != self._ends[0][0]:
                heappop(self._ends)
            if not self._ends or self._ends[0][0] > self._view.window_end_us:
                self._now_us = self._view.window_end_us
                return
            end_us, stream = heappop(self._ends)
            self._now_us = end_us
            self._finish(stream)
            # Completions of one microsecond end the same phase.
            while self._ends and self._ends[0][0] == end_us:
                _, other = heappop(self._ends)
                if self._runs[other].end_us == end_us:
                    self._finish(other)
            if until_completion:
                return

    def values(self) -> dict[StreamId, float]:
        """Returns each stream's mean from the view's now until the window's end, sorted by id."""
        left_us = self._view.window_end_us - self._view.now_us
        return {name: run.mean_accuracy(left_us, self._now_us) for name, run in self._runs.items()}

    def values_at_end(self) -> dict[StreamId, float]:
        """Returns each stream's inference accuracy after all phases have been played, sorted by id."""
        return {name: run.at_end for name, run in self._runs.items()}

    def _finish(self, stream: StreamId) -> None:
        self._runs[stream].finish_retraining(self._now_us)
        self.completions.append((stream, self._now_us))


class _StreamRun:
    """State of one stream while its phases are played forward."""

    def __init__(self, view: StreamView, window: WindowView) -> None:
        self._view = view
        self._curve, self._inference_curve = window.training_speed, window.inference_speed
        self._accuracy = view.accuracy
        self._retrain = view.running.option if view.running else None
        self._left_gpu_s = self._retrain.gpu_s if self._retrain else 0.0
        self._bend = bend_of(self._retrain.early_part) if self._retrain else 0.0
        self._since_us = window.now_us
        self._gets: tuple[object, ...] = ()
        self._speed = 0.0
        self._option: InferenceOption | None = None
        self._part = 0.0
        self._area = 0.0
        self._done = False
        self.end_us: int | None = None
        """Completion time of its retraining if nothing changes; None if it never completes."""

    def begin_assignment(self, given: Assignment, now_us: int) -> None:
        gets = (
            given.retrain,
            given.retrain_share_milli,
            given.inference,
            given.inference_share_milli,
            given.elsewhere,
        )
        if gets == self._gets:
            return
        self._settle(now_us)
        self._gets = gets
        if given.retrain is not None:
            self._choose(given.retrain, given.elsewhere)
        self._speed = self._curve.speed_at(given.retrain_share_milli) if given.retrain is not None else 0.0
        option = next((o for o in self._view.inference_options if o.config == given.inference), None)
        if option is None:
            raise ValueError(f"stream {self._view.stream} was not offered λ {given.inference}")
        self._option = option
        self._part = analysed_part(option, given.inference_share_milli, self._inference_curve)
        if self._retrain is None or self._done:
            self.end_us = None
        elif given.elsewhere is not None:
            self.end_us = max(now_us, given.elsewhere.arrives_us)
        else:
            self.end_us = completion_us(now_us, self._left_gpu_s, self._speed)

    def finish_retraining(self, now_us: int) -> None:
        self._settle(now_us)
        if self._retrain is not None:
            self._accuracy = max(self._accuracy, self._retrain.accuracy_after)
        self._done, self.end_us = True, None

    def mean_accuracy(self, left_us: int, now_us: int) -> float:
        self._settle(now_us)
        return self._area / left_us if left_us > 0 else self._answers(self._accuracy)

    @property
    def at_end(self) -> float:
        """Inference accuracy of the stream now; valid after ``mean``."""
        accuracy = self._accuracy
        if self._bend and self._retrain is not None and not self._done:
            accuracy += self._early(self._retrain, self._left_gpu_s)
        return self._answers(accuracy)

    def _choose(self, config: RetrainConfig, elsewhere: Elsewhere | None) -> None:
        if self._retrain is None:
            self._retrain = next((o for o in self._view.retrain_options if o.config == config), None)
            if elsewhere is not None and elsewhere.trained_in is not None:
                self._retrain = self._cached(config, elsewhere.trained_in)
            if self._retrain is None:
                raise ValueError(f"stream {self._view.stream} was not offered γ {config}")
            self._left_gpu_s = self._retrain.gpu_s
            self._bend = bend_of(self._retrain.early_part)
        elif self._retrain.config != config:
            raise ValueError(f"stream {self._view.stream} already has γ {self._retrain.config}")

    def _cached(self, config: RetrainConfig, trained_in: int) -> RetrainOption | None:
        """Returns a kept model; its accuracy on today's data is unknown, so it promises no gain."""
        kept = {(model.config, model.trained_in) for model in self._view.cached}
        known = (config, trained_in) in kept
        return RetrainOption(config, self._view.accuracy, 0.0) if known else None

    def _settle(self, now_us: int) -> None:
        """Adds up accuracy and work since the last change."""
        duration_us = now_us - self._since_us
        self._since_us = now_us
        before_gpu_s = self._left_gpu_s
        left_gpu_s = before_gpu_s - self._speed * duration_us / US_PER_S
        self._left_gpu_s = left_gpu_s if left_gpu_s >= DONE_GPU_S else 0.0
        serving = self._accuracy
        if self._bend and self._retrain is not None and not self._done:
            serving += self._early(self._retrain, before_gpu_s)
        self._area += self._answers(serving) * duration_us

    def _answers(self, serving: float) -> float:
        """Returns the accuracy of the answers with a serving model of this accuracy."""
        full = serving if self._option is None else self._option.full_accuracy(serving)
        return full * self._part

    def _early(self, option: RetrainOption, before_gpu_s: float) -> float:
        """Returns the mean accuracy added by checkpoints while the work fell to what is left.

        Args:
            option: the γ that runs.
            before_gpu_s: work that was left before.
        """
        if option.gpu_s <= 0.0:
            return 0.0
        start, end = 1.0 - before_gpu_s / option.gpu_s, 1.0 - self._left_gpu_s / option.gpu_s
        return max(option.accuracy_after - self._accuracy, 0.0) * mean_part(self._bend, start, end)
