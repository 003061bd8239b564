"""The one objective that every scheduler, forecast and test calls (paper §3.2, §4.1, Eq. 1).

For stream v at time t, with the serving model's accuracy a_v(t) when every frame is analysed, λ with
relative accuracy ρ and needed share n, and inference share I, the instantaneous inference accuracy is

    A_v(t) = a_v(t) · ρ · min(1, I / n)

because below the needed share frames are dropped and accuracy falls in proportion (paper §3.2: 75% of
the GPU that inference needs takes 65% down to 49%). A retraining with g GPU-seconds to do, at share R,
advances at speed(R) GPU-seconds a second and so takes g / speed(R) seconds while R stays; it keeps its
progress when R changes. On completion a_v becomes the larger of a_v and the option's
``accuracy_after``, because weights that are worse than what serves never serve; what does not complete
by the window's end E changes nothing. From now until E a stream's value is

    1 / (E − now) · ∫ A_v(t) dt

and the objective is the mean of the values, each counted by its stream's weight, or, where the view asks
for max-min (footnote 3), the smallest of them.

A phase lasts until the first completion among its retrainings, the last phase until E. Completions
round up to a whole microsecond. With one phase a stream's integral is a product of a part that depends
on (γ, R) and a part that depends on (λ, I): ``serving_accuracy`` and ``analysed_part``.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ekya.core.configs import RetrainConfig
from ekya.core.ids import StreamId
from ekya.core.plan import Assignment, Phase
from ekya.core.speed import SpeedCurve
from ekya.core.units import FULL_GPU_MILLI, US_PER_S
from ekya.core.view import InferenceOption, Objective, RetrainOption, StreamView, WindowView

DONE_GPU_S = 1e-9
"""Less work than this is rounding, not work."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What phases are worth.

    Attributes:
        score: the objective, in [0, 1]; 0 without streams.
        mean: the values' weighted mean, whatever the objective is; 0 without streams.
        per_stream: each stream's mean inference accuracy until the window's end, sorted by id.
        completions_us: when retrainings complete in the window, by time and then by id.
    """

    score: float
    mean: float
    per_stream: tuple[tuple[StreamId, float], ...]
    completions_us: tuple[tuple[StreamId, int], ...]


def analysed_part(option: InferenceOption, share_milli: int) -> float:
    """ρ · min(1, I / n): what λ at a share leaves of the model's accuracy, in [0, 1]."""
    if option.share_needed_milli <= 0:
        return option.relative_accuracy
    usable = min(share_milli, FULL_GPU_MILLI)
    return option.relative_accuracy * min(1.0, usable / option.share_needed_milli)


def completion_us(start_us: int, gpu_s: float, speed: float) -> int | None:
    """When ``gpu_s`` of work that begins at ``start_us`` is done at a speed; None if it never is."""
    return start_us + math.ceil(gpu_s / speed * US_PER_S) if speed > 0.0 else None


def serving_accuracy(
    view: WindowView, accuracy: float, option: RetrainOption | None, share_milli: int
) -> float:
    """Mean over the rest of the window of the serving model's accuracy, every frame analysed.

    ``accuracy`` serves until the retraining completes, and from then on ``option.accuracy_after`` if
    that is more.
    """
    if option is None:
        return accuracy
    return mean_after_retraining(view, accuracy, option, view.training_speed.speed(share_milli))


def mean_after_retraining(view: WindowView, accuracy: float, option: RetrainOption, speed: float) -> float:
    """``serving_accuracy`` for a speed that is already known."""
    left_us = view.window_end_us - view.now_us
    end_us = completion_us(view.now_us, option.gpu_s, speed)
    if end_us is None or left_us <= 0 or end_us >= view.window_end_us:
        return accuracy
    served_us = view.window_end_us - end_us
    return accuracy + max(option.accuracy_after - accuracy, 0.0) * (served_us / left_us)


def stream_value(
    view: WindowView,
    stream: StreamView,
    retrain: RetrainOption | None,
    retrain_share_milli: int,
    inference: InferenceOption,
    inference_share_milli: int,
) -> float:
    """One stream's part of the objective when these choices hold until the window's end."""
    serving = serving_accuracy(view, stream.accuracy, retrain, retrain_share_milli)
    return serving * analysed_part(inference, inference_share_milli)


def weighted_mean(view: WindowView, values: Mapping[StreamId, float]) -> float:
    """The mean of the streams' values by their weights; 0 without streams."""
    ordered = sorted(view.streams, key=lambda stream: stream.stream)
    total = sum(stream.weight for stream in ordered)
    return sum(stream.weight * values[stream.stream] for stream in ordered) / total if ordered else 0.0


def score(view: WindowView, values: Mapping[StreamId, float]) -> float:
    """What the view asks to maximise, from the streams' values; 0 without streams."""
    if view.objective is Objective.MAX_MIN:
        return min(values.values(), default=0.0)
    return weighted_mean(view, values)


def evaluate(view: WindowView, phases: Sequence[Phase]) -> Evaluation:
    """The objective for ``phases`` from ``view.now_us`` to the window's end.

    Raises:
        ValueError: a phase does not name every stream once, or names a γ or λ that its stream was
            not offered, or a second γ for one stream (Eq. 1, third constraint; a running
            retraining's γ is locked, paper §5).
    """
    if not phases:
        raise ValueError("a plan has at least one phase")
    runs = {stream.stream: _StreamRun(stream) for stream in view.streams}
    now_us = view.now_us
    completions: list[tuple[StreamId, int]] = []
    for index, phase in enumerate(phases):
        _begin(runs, phase)
        last = index == len(phases) - 1
        while now_us < view.window_end_us:
            next_us, finished = _first_completion(runs, now_us, view)
            for run in runs.values():
                run.advance(next_us - now_us, view.training_speed)
            for stream in finished:
                runs[stream].finish()
                completions.append((stream, next_us))
            now_us = next_us
            if finished and not last:
                break
    left_us = view.window_end_us - view.now_us
    per_stream = tuple((name, run.mean(left_us)) for name, run in sorted(runs.items()))
    values = dict(per_stream)
    return Evaluation(
        score(view, values),
        weighted_mean(view, values),
        per_stream,
        tuple(sorted(completions, key=lambda item: (item[1], item[0]))),
    )


class _StreamRun:
    """One stream while its phases are played forward."""

    def __init__(self, view: StreamView) -> None:
        self._view = view
        self._accuracy = view.accuracy
        self._retrain = view.running.option if view.running else None
        self._left_gpu_s = self._retrain.gpu_s if self._retrain else 0.0
        self._share_milli = 0
        self._part = 0.0
        self._area = 0.0
        self._done = False

    def begin(self, assignment: Assignment) -> None:
        if assignment.retrain is not None:
            self._choose(assignment.retrain)
        self._share_milli = assignment.retrain_share_milli if assignment.retrain is not None else 0
        matching = [o for o in self._view.inference_options if o.config == assignment.inference]
        if not matching:
            raise ValueError(f"stream {self._view.stream} was not offered λ {assignment.inference}")
        self._part = analysed_part(matching[0], assignment.inference_share_milli)

    def _choose(self, config: RetrainConfig) -> None:
        if self._retrain is None:
            matching = [o for o in self._view.retrain_options if o.config == config]
            if not matching:
                raise ValueError(f"stream {self._view.stream} was not offered γ {config}")
            self._retrain, self._left_gpu_s = matching[0], matching[0].gpu_s
        elif self._retrain.config != config:
            raise ValueError(f"stream {self._view.stream} already has γ {self._retrain.config}")

    def completion_us(self, now_us: int, speed: SpeedCurve) -> int | None:
        if self._retrain is None or self._done:
            return None
        return completion_us(now_us, self._left_gpu_s, speed.speed(self._share_milli))

    def advance(self, duration_us: int, speed: SpeedCurve) -> None:
        self._area += self._accuracy * self._part * duration_us
        done_gpu_s = speed.speed(self._share_milli) * duration_us / US_PER_S
        self._left_gpu_s = max(0.0, self._left_gpu_s - done_gpu_s)
        if self._left_gpu_s < DONE_GPU_S:
            self._left_gpu_s = 0.0

    def finish(self) -> None:
        if self._retrain is not None:
            self._accuracy = max(self._accuracy, self._retrain.accuracy_after)
            self._done = True

    def mean(self, left_us: int) -> float:
        return self._area / left_us if left_us > 0 else self._accuracy * self._part


def _begin(runs: dict[StreamId, _StreamRun], phase: Phase) -> None:
    named = [assignment.stream for assignment in phase.assignments]
    if sorted(named) != sorted(runs):
        raise ValueError("a phase names every stream of the view once")
    for assignment in phase.assignments:
        runs[assignment.stream].begin(assignment)


def _first_completion(
    runs: dict[StreamId, _StreamRun], now_us: int, view: WindowView
) -> tuple[int, list[StreamId]]:
    """When the next retrainings complete and which; the window's end and nobody, if that is sooner."""
    ends = {name: run.completion_us(now_us, view.training_speed) for name, run in runs.items()}
    next_us = min((end for end in ends.values() if end is not None), default=view.window_end_us)
    if next_us > view.window_end_us:
        return view.window_end_us, []
    return next_us, sorted(name for name, end in ends.items() if end == next_us)
