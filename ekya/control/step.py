"""One step of the loop as a pure function: replaying its inputs reproduces its outputs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ekya.control.checkpointing import gpu_s_left
from ekya.control.immediate_commands import immediate_commands
from ekya.control.loop_state import LoopState, as_asked, options_known
from ekya.control.options import LoopOptions
from ekya.control.plan_commands import after_command, at_granted_shares, diff_plan
from ekya.control.preparation_timing import more_labels_us, plan_mid_window_preparation, time_limit_us
from ekya.control.protocols import Batch, Planner
from ekya.control.views import (
    falls_behind,
    history_of,
    retrain_options,
    window_view,
)
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core import requests as rq
from ekya.core.effects import apply_event
from ekya.core.plan import Plan
from ekya.core.profile import Profiler
from ekya.core.state import FleetState, RetrainJob, StreamState
from ekya.core.stream_faults import OVER
from ekya.core.units import FULL_GPU_MILLI, us_to_seconds
from ekya.planning.profiling.estimate import reestimated_accuracy
from ekya.planning.profiling.history import Observation
from ekya.planning.profiling.outcomes import learn_outcomes
from ekya.planning.profiling.speed_curves import refine_curve
from ekya.planning.schedulers.scheduler import Needs

ESTIMATE_CHANGE = 0.02
"""An estimate must change by more than this to trigger a new plan."""

NEARLY_OVER_PART = 0.02
"""A retraining with less GPU time left than this part of a window ends before a new plan could help it."""

ESTIMATE_EVERY_EPOCHS = 2
"""Epochs between two estimates of a running retraining's result (paper §5: every few epochs).

Only with the paper's profiler: beside estimates by outcomes, a few validation labels told nothing more, and
where GPUs are plenty their noise ended retrainings that would have gained.
"""


PLANNED_AGAIN_AFTER = (
    ev.WindowOpened,
    ev.StreamAdded,
    ev.PreparationEnded,
    ev.RetrainFinished,
    ev.RetrainFailed,
    ev.WorkerDied,
    ev.WorkerBack,
    ev.ProfilerBack,
    ev.StreamLost,
    ev.StreamBack,
    ev.StreamEnded,
    rq.StreamPaused,
    rq.StreamRemoved,
    rq.ModelFrozen,
    rq.TermsChanged,
    rq.MinAccuracyChanged,
    rq.SchedulerChanged,
    rq.CapacityChanged,
    ev.CapacityLent,
)
"""Events that always require a new plan."""

PREPARED_AGAIN_AFTER = (
    ev.DriftDetected,
    ev.MoreLabelsDue,
    ev.LabelsReady,
    rq.LabelsRequested,
)
"""Events after which, beside those, a stream may be prepared again. Others do not make it worth more."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """Result of one step. ``plan`` is None where no event required a plan."""

    state: LoopState
    plan: Plan | None
    commands: tuple[cmd.Command, ...]


def step(state: LoopState, batch: Batch, options: LoopOptions, needs: Needs, planner: Planner) -> StepResult:
    """Applies a batch of events, makes a plan if one is due, and returns the commands."""
    commands: list[cmd.Command] = []
    plan_again = False
    options = options_known(options, state)
    # A run that goes on has started all workers, also those of streams that it tries again.
    back = {event.stream for event in batch.events if isinstance(event, ev.WorkerBack)}
    for event in ev.in_order(batch.events):
        if _of_forgotten(state.fleet, event):
            continue
        before = state
        state = _learn(before, event, options, needs)
        matters = isinstance(event, PLANNED_AGAIN_AFTER)
        if isinstance(event, ev.StreamReadmitted) and event.stream in back:
            continue
        for command in immediate_commands(before.fleet, state, event, batch.now_us, options, needs):
            commands.append(command)
            state = replace(state, fleet=after_command(state.fleet, command, event.t_us))
        if isinstance(event, ev.RetrainProgress) and options.profiler is Profiler.PAPER:
            state, matters = _estimate_again(state, event, options.window_us)
        if isinstance(event, ev.NeedMeasured):
            old, new = (one.fleet.stream(event.stream) for one in (before, state))
            matters = falls_behind(new, options) and not falls_behind(old, options)
        plan_again = plan_again or matters
    asks = plan_again or any(isinstance(event, PREPARED_AGAIN_AFTER) for event in batch.events)
    # Again: events of this batch may be requests that change them.
    options = as_asked(options, state.fleet)
    answer = (
        plan_mid_window_preparation(state.fleet, state.histories, batch.now_us, options, needs)
        if asks
        else None
    )
    if answer is not None:
        commands.append(answer)
        state = replace(state, fleet=after_command(state.fleet, answer, batch.now_us))
        plan_again = True
    commands = _newest_models(commands)
    # A late step may come after the window's end, where a plan has no time left.
    if not plan_again or state.fleet.window < 0 or batch.now_us >= state.fleet.window_end_us:
        return StepResult(state, None, tuple(commands))

    options = options_known(options, state)
    view = window_view(state.fleet, batch.now_us, options, needs, state.histories, state.phases)
    if not view.streams:
        return StepResult(state, None, tuple(commands))
    plan = planner(view)
    granted = at_granted_shares(view, plan, state.fleet, options, needs)
    plan = replace(granted, epoch=state.epoch + 1)
    state = replace(state, phases=plan.phases, epoch=plan.epoch)
    begun = [command for command in commands if isinstance(command, cmd.BeginPreparation)]
    fewest = diff_plan(view, plan.phases[0].assignments, state.fleet, begun)
    planned = [cmd.of_plan(command, plan.epoch) for command in fewest]
    for command in planned:
        if not isinstance(command, cmd.BeginPreparation):  # it has begun above
            state = replace(state, fleet=after_command(state.fleet, command, batch.now_us))
    return StepResult(state, plan, (*(command for command in commands if command not in begun), *planned))


def _of_forgotten(fleet: FleetState, event: ev.Event) -> bool:
    """Returns whether an event is of a stream that was removed, which its workers did not know yet."""
    return not isinstance(event, ev.StreamAdded) and getattr(event, "stream", None) in fleet.forgotten


def _newest_models(commands: Sequence[cmd.Command]) -> list[cmd.Command]:
    """Keeps only the last ServeModel command of each stream."""
    last = {
        command.stream: place for place, command in enumerate(commands) if isinstance(command, cmd.ServeModel)
    }
    return [
        command
        for place, command in enumerate(commands)
        if not isinstance(command, cmd.ServeModel) or last[command.stream] == place
    ]


def loop_events_due(state: FleetState, now_us: int, options: LoopOptions) -> tuple[ev.Event, ...]:
    """Returns the loop's own events: borders of windows, the time limit of preparation, further labels.

    Once every stream has ended or was set aside, no further window opens and the run ends, unless another
    stream may still join. A lost camera may come back, so the run waits for it.
    """
    options = as_asked(options, state)
    if state.window < 0:
        # Only a service that has lost its state begins later than in window 0.
        first = now_us // options.window_us
        return (ev.WindowOpened(first * options.window_us, first, (first + 1) * options.window_us),)
    if now_us >= state.window_end_us:
        closed = ev.WindowClosed(state.window_end_us, state.window)
        following = state.window + 1
        over = options.windows is not None and following >= options.windows
        gone = all(stream.status in OVER for stream in state.streams)
        if over or (gone and now_us > options.last_join_us):
            return (closed,)
        end_us = state.window_end_us + options.window_us
        opened = ev.WindowOpened(state.window_end_us, following, end_us)
        return (closed, opened, *_readmitted(state, options))
    if state.preparation is not None and now_us >= next_due_us(state, options):
        return (ev.PreparationEnded(now_us, state.window, state.preparation.round),)
    return tuple(
        ev.MoreLabelsDue(now_us, stream.stream, state.window)
        for stream in state.streams
        if (due_us := more_labels_us(stream, options)) is not None and due_us <= now_us
    )


def _readmitted(state: FleetState, options: LoopOptions) -> Iterator[ev.StreamReadmitted]:
    """Yields the streams that are tried again when the next window opens."""
    if options.readmit_after_us is None:
        return
    for stream in state.streams:
        again_us = stream.faults.readmitted_us(options.readmit_after_us)
        if again_us is not None and again_us <= state.window_end_us and not stream.removed:
            yield ev.StreamReadmitted(state.window_end_us, stream.stream)


def next_due_us(state: FleetState, options: LoopOptions) -> int:
    """Returns the time of the loop's own next event."""
    options = as_asked(options, state)
    if state.preparation is not None:
        limit_us = time_limit_us(state.preparation.share_milli, options)
        return min(state.preparation.began_us + limit_us, state.window_end_us)
    labelled = (more_labels_us(stream, options) for stream in state.streams)
    known = (due_us for due_us in labelled if due_us is not None)
    return min((state.window_end_us, *known))


def _learn(state: LoopState, event: ev.Event, options: LoopOptions, needs: Needs) -> LoopState:
    """Returns the state after an event, including histories of γ and speeds."""
    learnt = replace(state, fleet=apply_event(state.fleet, event))
    match event:
        case ev.StreamAdded() if event.stream in state.histories:
            others = {one: its for one, its in state.histories.items() if one != event.stream}
            return replace(learnt, histories=others)
        case ev.WindowOpened():
            return _without_removed(learnt)
        case ev.PreparationEnded() if needs.micro_profile and options.profiler is Profiler.PAPER:
            return _remember_profiles(learnt, options, needs)
        case ev.LabelsReady() if event.compared is not None and event.stream in state.histories:
            seen, own = event.compared, state.histories[event.stream]
            checked = own.with_comparison(seen.old, seen.new, seen.objects)
            return replace(learnt, histories={**state.histories, event.stream: checked})
        case ev.RetrainFinished():
            before, after = state.fleet.stream(event.stream), learnt.fleet.stream(event.stream)
            if before.job is not None and after.job is None:
                return _remember_retraining(learnt, before, before.job, event.gpu_s)
        case ev.WindowClosed() if options.trainer_milli == FULL_GPU_MILLI:
            paces = [pace for stream in state.fleet.streams for pace in stream.paces]
            speed = refine_curve(options.training_speed, paces)
            return learnt if speed == options.training_speed else replace(learnt, training_speed=speed)
    return learnt


def _without_removed(state: LoopState) -> LoopState:
    """Returns the state without histories of streams that are not in the fleet any more."""
    there = {stream.stream for stream in state.fleet.streams}
    if there.issuperset(state.histories):
        return state
    return replace(state, histories={one: its for one, its in state.histories.items() if one in there})


def _remember_profiles(state: LoopState, options: LoopOptions, needs: Needs) -> LoopState:
    """Returns the state with what was profiled, from which the paper's profiler prunes bad γ."""
    histories, outcomes = dict(state.histories), learn_outcomes(state.histories)
    for stream in state.fleet.streams:
        accuracy = stream.accuracy or 0.0
        history = history_of(histories, stream.stream)
        for option in retrain_options(stream, False, accuracy, options, needs, outcomes):
            history = history.with_observation(
                Observation(state.fleet.window, option.config, option.accuracy_after - accuracy, option.gpu_s)
            )
        histories[stream.stream] = history
    return replace(state, histories=histories)


def _remember_retraining(state: LoopState, before: StreamState, job: RetrainJob, gpu_s: float) -> LoopState:
    # Its checkpoints may have served since.
    accuracy = job.accuracy_before or 0.0
    observation = Observation(
        window=state.fleet.window,
        config=job.config,
        gain=job.best_accuracy - accuracy,
        # Remote retrainings do not report their use, so the expected cost is kept.
        gpu_s=gpu_s if job.elsewhere is None else job.expected_gpu_s,
        predicted_gain=job.promised_accuracy - accuracy,
        validation_crops=before.labels.validation_crops,
        elsewhere=job.elsewhere is not None,
        before=job.accuracy_before,
    )
    history = history_of(state.histories, before.stream).with_observation(observation)
    return replace(state, histories={**state.histories, before.stream: history})


def _estimate_again(state: LoopState, event: ev.RetrainProgress, window_us: int) -> tuple[LoopState, bool]:
    """Re-estimates a running retraining; returns the state and whether to plan again (paper §5)."""
    stream = state.fleet.stream(event.stream)
    job = stream.job
    if job is None or job.job != event.job or len(job.accuracies) % ESTIMATE_EVERY_EPOCHS:
        return state, False
    # A remote retraining has no share here that a new plan could change.
    if job.elsewhere is not None:
        return state, False
    if gpu_s_left(job) < NEARLY_OVER_PART * us_to_seconds(window_us):
        return state, False
    estimate = reestimated_accuracy(job.config, job.promised_accuracy, job.accuracies)
    if abs(estimate - job.expected_accuracy) <= ESTIMATE_CHANGE:
        return state, False
    renewed = replace(stream, job=replace(job, expected_accuracy=estimate))
    return replace(state, fleet=state.fleet.with_stream(renewed)), True
