"""Simulates a window that is planned again at every completion, with estimates that hold.

Only the first phase of a plan is ever carried out, so schedulers are compared by the value of whole windows,
not by their forecasts.
"""

from dataclasses import dataclass, replace

from ekya.core.configs import RetrainConfig
from ekya.core.plan import Assignment
from ekya.core.units import US_PER_S, JobId, StreamId
from ekya.core.view import RetrainOption, RunningRetraining, StreamView, WindowView
from ekya.planning.schedulers.checkpoint_gain import bend_of, early_part_left, mean_part
from ekya.planning.schedulers.objective import evaluate_phases, weighted_mean
from ekya.planning.schedulers.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class Executed:
    """Result of an executed window.

    Attributes:
        score: the objective, over what was carried out.
        values: each stream's mean inference accuracy, sorted by id.
        plans: number of plans made.
        forecast: objective that the first plan expected.
    """

    score: float
    values: tuple[tuple[StreamId, float], ...]
    plans: int
    forecast: float


def execute(view: WindowView, scheduler: Scheduler) -> Executed:
    """Carries a window out from ``view.now_us`` to its end."""
    window_us = view.window_end_us - view.now_us
    areas = {stream.stream: 0.0 for stream in view.streams}
    now, plans, forecast = view, 0, 0.0
    while now.now_us < view.window_end_us:
        plan = scheduler.plan(now)
        forecast = forecast if plans else plan.expected_accuracy
        plans += 1
        now, gained = _carry_out(replace(now, previous=plan.phases))
        for stream, area in gained.items():
            areas[stream] += area
    values = {stream: area / max(window_us, 1) for stream, area in sorted(areas.items())}
    return Executed(weighted_mean(view, values), tuple(values.items()), plans, forecast)


def _carry_out(view: WindowView) -> tuple[WindowView, dict[StreamId, float]]:
    """Runs the first phase of ``view.previous`` to its first completion; returns view and accuracy · µs."""
    phase = view.previous[0]
    completions = evaluate_phases(view, (phase,)).completions_us
    until_us = min([view.window_end_us, *(end_us for _, end_us in completions)])
    reached = replace(view, window_end_us=until_us)
    lasts_us = until_us - view.now_us
    gained = {stream: value * lasts_us for stream, value in evaluate_phases(reached, (phase,)).per_stream}
    ended = {stream for stream, end_us in completions if end_us == until_us}
    given = {assignment.stream: assignment for assignment in phase.assignments}
    streams = tuple(
        _after(view, index, stream, given[stream.stream], lasts_us, stream.stream in ended)
        for index, stream in enumerate(view.streams)
    )
    return replace(view, now_us=until_us, streams=streams), gained


def _after(
    view: WindowView, index: int, stream: StreamView, given: Assignment, lasts_us: int, ended: bool
) -> StreamView:
    running = stream.running
    option = running.option if running else _offered(stream, given.retrain)
    if option is None or (running is None and given.retrain_share_milli == 0):
        return stream
    if ended:
        reached = max(stream.accuracy, option.accuracy_after)
        return replace(stream, accuracy=reached, retrain_options=(), running=None)
    share_milli = given.retrain_share_milli
    done_gpu_s = view.training_speed.speed_at(share_milli) * lasts_us / US_PER_S
    left, accuracy = going_on(option, stream.accuracy, done_gpu_s)
    job = running.job if running else JobId(index + 1)
    running = RunningRetraining(job, left, share_milli)
    return replace(stream, accuracy=accuracy, retrain_options=(), running=running)


def _offered(stream: StreamView, config: RetrainConfig | None) -> RetrainOption | None:
    return next((option for option in stream.retrain_options if option.config == config), None)


def going_on(option: RetrainOption, accuracy: float, done_gpu_s: float) -> tuple[RetrainOption, float]:
    """Returns the rest of a γ after some of its work, and the accuracy that serves then.

    Args:
        option: γ with all its work.
        accuracy: accuracy before any of its work.
        done_gpu_s: work done.
    """
    left = replace(option, gpu_s=max(option.gpu_s - done_gpu_s, 0.0))
    gain = option.accuracy_after - accuracy
    if option.early_part <= 0.0 or gain <= 0.0 or option.gpu_s <= 0.0:
        return left, accuracy
    part = min(done_gpu_s / option.gpu_s, 1.0)
    reached = accuracy + gain * mean_part(bend_of(option.early_part), part, part)
    return replace(left, early_part=early_part_left(option.early_part, 1.0 - part)), reached
