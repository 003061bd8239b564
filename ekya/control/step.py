"""One turn of the loop, as a pure function: replaying its inputs gives its outputs again."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ekya.control.checkpointing import gpu_s_left, worth_serving
from ekya.control.diff import diff
from ekya.control.effects import after_command
from ekya.control.options import LoopOptions
from ekya.control.protocols import Batch, Planner
from ekya.control.views import (
    Histories,
    falls_behind,
    held_milli,
    history_of,
    retrain_options,
    rooms_at_home,
    window_view,
)
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.gpu_groups import GpuGroups
from ekya.core.ids import StreamId
from ekya.core.plan import Phase, Plan
from ekya.core.profile import Family, family_of
from ekya.core.speed import SpeedCurve
from ekya.core.state import OVER, FleetState, RetrainJob, Status, StreamState, apply
from ekya.core.units import us_to_seconds
from ekya.core.view import RetrainOption, WindowView
from ekya.placement.homes import AtHome
from ekya.placement.pack import pack
from ekya.placement.steps import Steps
from ekya.profiling.gate import why_back, why_not
from ekya.profiling.history import Observation
from ekya.profiling.progress import reestimate
from ekya.profiling.pruning import select
from ekya.profiling.speed import refined
from ekya.profiling.steps import Waiting, in_turn
from ekya.scheduling.allocation import Job, JobKind, inference_floors, shares_of, with_floors
from ekya.scheduling.leftover import Grants
from ekya.scheduling.protocol import Needs
from ekya.scheduling.regrant import regrant

ESTIMATE_CHANGE = 0.02
"""An estimate that moves by less than this is not worth planning again."""

NEARLY_OVER_PART = 0.02
"""With less GPU time left than this part of a window a retraining is over before another plan helps it."""

ESTIMATE_EVERY_EPOCHS = 2
"""How often a running retraining's outcome is estimated anew (paper §5: every few epochs)."""


@dataclass(frozen=True, slots=True)
class LoopState:
    """What the loop carries from turn to turn.

    Attributes:
        fleet: what is known of the run.
        histories: what γ gave each stream in past windows.
        phases: of the plan made last.
        epoch: number of that plan; 0 before the first.
        training_speed: what the retrainings of earlier windows have made of the options' curve; None where
            they have said nothing. It stays the same within a window.
    """

    fleet: FleetState
    histories: Histories
    phases: tuple[Phase, ...] = ()
    epoch: int = 0
    training_speed: SpeedCurve | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """What came of one turn. ``plan`` is None where nothing that matters had happened."""

    state: LoopState
    plan: Plan | None
    commands: tuple[cmd.Command, ...]


def take_turn(state: LoopState, batch: Batch, options: LoopOptions, needs: Needs, planner: Planner) -> Turn:
    """Applies a batch of events, asks the scheduler at most once, and says what is to be done."""
    commands: list[cmd.Command] = []
    plan_again = False
    options = _as_known(options, state)
    for event in ev.in_order(batch.events):
        before = state
        state = _learn(before, event, options, needs)
        matters = _matters(event)
        for command in _answers(before.fleet, state, event, batch.now_us, options, needs):
            commands.append(command)
            state = replace(state, fleet=after_command(state.fleet, command))
        if isinstance(event, ev.RetrainProgress) and not needs.true_profile:
            state, matters = _estimate_again(state, event, options.window_us)
        if isinstance(event, ev.NeedMeasured):
            old, new = (one.fleet.stream(event.stream) for one in (before, state))
            matters = falls_behind(new, options) and not falls_behind(old, options)
        plan_again = plan_again or matters
    commands = _newest_models(commands)
    if not plan_again or state.fleet.window < 0 or batch.now_us >= state.fleet.window_end_us:
        return Turn(state, None, tuple(commands))

    options = _as_known(options, state)
    view = window_view(state.fleet, batch.now_us, options, needs, state.histories, state.phases)
    if not view.streams:
        return Turn(state, None, tuple(commands))
    granted = _at_granted_shares(view, planner(view), state.fleet, options, needs)
    plan = replace(granted, epoch=state.epoch + 1)
    state = replace(state, phases=plan.phases, epoch=plan.epoch)
    begun = [command for command in commands if isinstance(command, cmd.BeginPreparation)]
    fewest = diff(view, plan.phases[0].assignments, state.fleet, begun)
    planned = [cmd.of_plan(command, plan.epoch) for command in fewest]
    for command in planned:
        state = replace(state, fleet=after_command(state.fleet, command))
    return Turn(state, plan, (*(command for command in commands if command not in begun), *planned))


def _newest_models(commands: Sequence[cmd.Command]) -> list[cmd.Command]:
    """Of several models that a stream is to serve from this turn on, the last."""
    last = {
        command.stream: place for place, command in enumerate(commands) if isinstance(command, cmd.ServeModel)
    }
    return [
        command
        for place, command in enumerate(commands)
        if not isinstance(command, cmd.ServeModel) or last[command.stream] == place
    ]


def _as_known(options: LoopOptions, state: LoopState) -> LoopOptions:
    """With the speeds that this window is planned with."""
    if state.training_speed is None:
        return options
    return replace(options, training_speed=state.training_speed)


def _at_granted_shares(
    view: WindowView, plan: Plan, fleet: FleetState, options: LoopOptions, needs: Needs
) -> Plan:
    """What the plan becomes at the shares that can be enforced (DESIGN §5)."""
    shares = shares_of(plan.phases[0])
    if not needs.fixed_shares:
        shares = _with_floors(view, shares, fleet, options)
    return regrant(view, plan, _grants(shares, fleet, options), needs)


def _with_floors(
    view: WindowView, shares: Mapping[Job, int], fleet: FleetState, options: LoopOptions
) -> dict[Job, int]:
    """No stream's inference is starved, whatever the scheduler has planned; on each GPU by itself."""
    floors = inference_floors(view)
    if not options.homes:
        return with_floors(shares, floors, view.capacity_milli, view.quantum_milli)
    homes = {one.stream: one.gpu for one in options.homes}
    lifted: dict[Job, int] = {}
    for gpu, room_milli in enumerate(rooms_at_home(fleet, options)):
        here = {job: share for job, share in shares.items() if homes[job.stream] == gpu}
        lifted |= with_floors(here, floors, room_milli, view.quantum_milli)
    return {job: lifted[job] for job in shares}


def _grants(shares: Mapping[Job, int], fleet: FleetState, options: LoopOptions) -> Grants:
    def groups_of(job: Job) -> GpuGroups | None:
        return options.training_groups if job.kind is JobKind.RETRAINING else None

    steps = Steps(options.share_step_milli, groups_of)
    if options.homes:
        homes = {one.stream: one.gpu for one in options.homes}
        return AtHome(
            options.packing,
            shares,
            lambda job: homes[job.stream],
            rooms_at_home(fleet, options),
            steps,
        )
    return pack(
        options.packing,
        shares,
        capacity_milli=options.capacity_milli,
        held_milli=held_milli(fleet, options),
        steps=steps,
    )


def due(state: FleetState, now_us: int, options: LoopOptions) -> tuple[ev.Event, ...]:
    """The loop's own events: borders of windows, and the end of the time for preparation.

    After a window in which every stream has ended or was set aside, none opens and the run is over, unless
    another is still to join. A camera that is lost may come back, so the run waits for it.
    """
    if state.window < 0:
        return (ev.WindowOpened(0, 0, options.window_us),)
    if now_us >= state.window_end_us:
        closed = ev.WindowClosed(state.window_end_us, state.window)
        following = state.window + 1
        over = options.windows is not None and following >= options.windows
        gone = all(stream.status in OVER for stream in state.streams)
        if over or (gone and now_us > options.last_join_us):
            return (closed,)
        end_us = state.window_end_us + options.window_us
        return (closed, ev.WindowOpened(state.window_end_us, following, end_us))
    if state.preparing and now_us >= next_due_us(state, options):
        return (ev.PreparationEnded(now_us, state.window),)
    return ()


def next_due_us(state: FleetState, options: LoopOptions) -> int:
    """When the loop itself has something to do next."""
    if state.preparing:
        began_us = max(state.window_open_us, state.profiler_back_us)
        return min(began_us + options.preparation_us, state.window_end_us)
    return state.window_end_us


def _matters(event: ev.Event) -> bool:
    match event:
        case (
            ev.WindowOpened()
            | ev.StreamAdded()
            | ev.PreparationEnded()
            | ev.RetrainFinished()
            | ev.RetrainFailed()
            | ev.WorkerDied()
            | ev.WorkerBack()
            | ev.ProfilerBack()
            | ev.StreamLost()
            | ev.StreamBack()
            | ev.StreamEnded()
            | ev.CapacityLent()
        ):
            return True
        case _:
            return False


def _learn(state: LoopState, event: ev.Event, options: LoopOptions, needs: Needs) -> LoopState:
    """What an event changes in what is known, histories of γ and speeds included."""
    learnt = replace(state, fleet=apply(state.fleet, event))
    match event:
        case ev.PreparationEnded() if needs.micro_profile:
            return _remember_profiles(learnt, options, needs)
        case ev.RetrainFinished():
            before, after = state.fleet.stream(event.stream), learnt.fleet.stream(event.stream)
            if before.job is not None and after.job is None:
                return _remember_retraining(learnt, before, before.job, event.gpu_s)
        case ev.WindowClosed():
            paces = [pace for stream in state.fleet.streams for pace in stream.paces]
            speed = refined(options.training_speed, paces)
            return learnt if speed == options.training_speed else replace(learnt, training_speed=speed)
    return learnt


def _remember_profiles(state: LoopState, options: LoopOptions, needs: Needs) -> LoopState:
    histories = dict(state.histories)
    for stream in state.fleet.streams:
        accuracy = stream.accuracy or 0.0
        history = history_of(histories, stream.stream)
        for option in retrain_options(stream, False, accuracy, options, needs, history):
            history = history.with_observation(
                Observation(state.fleet.window, option.config, option.accuracy_after - accuracy, option.gpu_s)
            )
        histories[stream.stream] = history
    return replace(state, histories=histories)


def _remember_retraining(state: LoopState, before: StreamState, job: RetrainJob, gpu_s: float) -> LoopState:
    accuracy = before.accuracy or 0.0
    observation = Observation(
        window=state.fleet.window,
        config=job.config,
        gain=job.best_accuracy - accuracy,
        # What others spent on it is not told; γ costs no less because of that.
        gpu_s=gpu_s if job.elsewhere is None else job.expected_gpu_s,
        predicted_gain=job.promised_accuracy - accuracy,
    )
    history = history_of(state.histories, before.stream).with_observation(observation)
    return replace(state, histories={**state.histories, before.stream: history})


def _answers(
    before: FleetState,
    after: LoopState,
    event: ev.Event,
    now_us: int,
    options: LoopOptions,
    needs: Needs,
) -> Iterator[cmd.Command]:
    """What an event asks for by itself, before anything is planned."""
    match event:
        case ev.WindowOpened() if event.index > 0 and needs.labels and now_us < event.end_us:
            yield _preparation(after, options, needs)
        case ev.ProfilerBack() if needs.labels and _may_prepare_late(before, event.t_us, options):
            yield _preparation(after, options, needs)
        case ev.LabelsReady() if event.compared is not None and event.window == before.window:
            reason = why_back(event.compared, options.roll_back_margin)
            if reason is not None and after.fleet.stream(event.stream).status not in OVER:
                yield cmd.RollBack(event.stream, reason)
        case ev.PreparationEnded() if before.preparing and event.window == before.window:
            yield cmd.EndPreparation(event.window)
        case ev.RetrainProgress():
            stream = after.fleet.stream(event.stream)
            job = stream.job
            if job is None or _comes_whole(job, needs):
                return
            if worth_serving(stream, job, now_us, after.fleet.window_end_us, options):
                yield cmd.ServeModel(event.stream, job.job, job.best_epoch)
        case ev.RetrainFinished() | ev.RetrainFailed():
            job = before.stream(event.stream).job
            if job is not None and job.job == event.job:
                yield from _through_gate(before.stream(event.stream), job, options.serve_margin, needs)
        case ev.WindowClosed():
            if before.preparing:
                yield cmd.EndPreparation(event.index)
            for stream in before.streams:
                if stream.job is not None:
                    yield from _through_gate(stream, stream.job, options.serve_margin, needs)
                    yield cmd.StopRetraining(stream.stream, stream.job.job)
        case ev.StreamEnded():
            # Nothing is left to serve better, so others get the share at once.
            job = before.stream(event.stream).job
            if job is not None:
                yield cmd.StopRetraining(event.stream, job.job)
        case ev.WorkerDied():
            stream = after.fleet.stream(event.stream)
            if stream.status not in OVER:
                yield cmd.RestartWorker(event.stream, event.role)
            elif stream.set_aside is not None and before.stream(event.stream).set_aside is None:
                yield cmd.SetAside(event.stream, stream.reason)
        case _:
            return


def _may_prepare_late(fleet: FleetState, now_us: int, options: LoopOptions) -> bool:
    """Whether a window has gone without labels, and there is time to make them now."""
    unlabelled = not any(stream.training_crops or stream.validation_crops for stream in fleet.streams)
    in_time = now_us + options.preparation_us < fleet.window_end_us
    return fleet.window > 0 and not fleet.preparing and unlabelled and in_time


def _through_gate(stream: StreamState, job: RetrainJob, margin: float, needs: Needs) -> Iterator[cmd.Command]:
    """The best weights of a job that is over, unless they serve already; or why they do not serve.

    What a scheduler has trained elsewhere serves in any case: nobody here has measured what serves on the
    same labels. What another server trained was measured on the labels here.
    """
    if _comes_whole(job, needs) and job.accuracies:
        yield cmd.ServeModel(stream.stream, job.job, job.best_epoch)
        return
    if job.best_epoch <= job.served_epoch:
        return
    reason = why_not(job.best_accuracy, stream.accuracy or 0.0, margin)
    if reason is None:
        yield cmd.ServeModel(stream.stream, job.job, job.best_epoch)
    else:
        yield cmd.KeepServing(stream.stream, job.job, job.best_epoch, reason)


def _comes_whole(job: RetrainJob, needs: Needs) -> bool:
    """What a scheduler has trained elsewhere comes once; what another server trains, epoch by epoch."""
    return job.elsewhere is not None and (needs.elsewhere or needs.kept_models)


INFERENCE_PROFILE_EVERY = 4
"""Windows from one profile of λ to the next, or more: how things move changes more slowly than how they
look."""


def _preparation(state: LoopState, options: LoopOptions, needs: Needs) -> cmd.BeginPreparation:
    window = state.fleet.window
    # A stream that has just been added has shown nothing yet.
    serving = [
        stream
        for stream in state.fleet.streams
        if stream.status is Status.SERVING and stream.added_in < window
    ]

    if options.prepared_streams is not None and options.prepared_streams < len(serving):
        waiting = [Waiting(of.stream, of.prepared_in, of.accuracy) for of in serving]
        serving = [state.fleet.stream(one) for one in in_turn(waiting, options.prepared_streams)]

    def profiles_inference(stream: StreamState) -> bool:
        last = stream.inference_profiled_in
        due_again = last is None or window - last >= INFERENCE_PROFILE_EVERY
        return needs.inference_profile and (needs.true_profile or due_again)

    return cmd.BeginPreparation(
        window=window,
        share_milli=options.preparation_share_milli,
        streams=tuple(
            cmd.PrepareStream(
                stream=stream.stream,
                inference=options.inference_configs if profiles_inference(stream) else (),
                families=_families(state, stream.stream, options, needs),
            )
            for stream in serving
        ),
        # As the window that opens is planned, and not the one that has just closed.
        training_speed=_as_known(options, state).training_speed,
    )


def _families(state: LoopState, stream: StreamId, options: LoopOptions, needs: Needs) -> tuple[Family, ...]:
    if not needs.micro_profile:
        return ()
    if needs.true_profile:
        return tuple(sorted({family_of(config) for config in options.retrain_configs}))
    return select(options.retrain_configs, history_of(state.histories, stream), state.fleet.window)


def _estimate_again(state: LoopState, event: ev.RetrainProgress, window_us: int) -> tuple[LoopState, bool]:
    """Updates what a running retraining is expected to reach; whether that changes the plan (paper §5)."""
    stream = state.fleet.stream(event.stream)
    job = stream.job
    if job is None or job.job != event.job or len(job.accuracies) % ESTIMATE_EVERY_EPOCHS:
        return state, False
    # What is trained elsewhere has no share here that another plan could change.
    if job.elsewhere is not None:
        return state, False
    if gpu_s_left(job) < NEARLY_OVER_PART * us_to_seconds(window_us):
        return state, False
    profiled = RetrainOption(job.config, job.promised_accuracy, job.expected_gpu_s)
    estimate = reestimate(
        profiled,
        list(enumerate(job.accuracies, start=1)),
        job.gpu_s,
        validation_crops=stream.validation_crops,
    ).accuracy_after
    if abs(estimate - job.expected_accuracy) <= ESTIMATE_CHANGE:
        return state, False
    renewed = replace(stream, job=replace(job, expected_accuracy=estimate))
    return replace(state, fleet=state.fleet.with_stream(renewed)), True
