"""From a plan to commands: the shares that can be enforced, and the fewest commands that reach them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter

from ekya.control.options import LoopOptions
from ekya.control.views import free_milli_at_home, held_milli, homes_of
from ekya.core import commands as cmd
from ekya.core.plan import Assignment, Plan
from ekya.core.shares import Job
from ekya.core.state import FleetState, RetrainJob, RunningPreparation, StreamState
from ekya.core.stream_faults import Status
from ekya.core.units import JobId
from ekya.core.view import RetrainOption, StreamView, WindowView
from ekya.planning.granting.regrant import regrant_plan
from ekya.planning.placement.homes import AtHome, Grants
from ekya.planning.placement.pack import pack_shares
from ekya.planning.placement.rounding import ShareSteps
from ekya.planning.schedulers.allocation import (
    inference_floors,
    kept_floors,
    shares_of,
    with_floors,
)
from ekya.planning.schedulers.scheduler import Needs

_SHRINK, _PREPARE, _GROW, _START = range(4)


def diff_plan(
    view: WindowView,
    assignments: tuple[Assignment, ...],
    state: FleetState,
    preparations: Sequence[cmd.BeginPreparation] = (),
) -> tuple[cmd.Command, ...]:
    """Returns commands in an order in which shares never exceed the capacity.

    Commands that release shares come first, then ``preparations``, which begin in the same step, then
    commands that need more. What already matches the plan is unchanged, so the same plan twice gives no
    commands.
    """
    ranked: list[tuple[int, cmd.Command]] = [(_PREPARE, preparation) for preparation in preparations]
    next_job = state.next_job
    views = {stream.stream: stream for stream in view.streams}
    for assignment in assignments:
        stream = state.stream(assignment.stream)
        if stream.status is not Status.SERVING:
            continue
        share, job = assignment.inference_share_milli, stream.job
        if (stream.inference, stream.inference_share_milli) != (assignment.inference, share):
            # At the same share only λ changes, which waits for no other job.
            rank = _SHRINK if share <= stream.inference_share_milli else _GROW
            ranked.append((rank, cmd.SetInference(stream.stream, assignment.inference, share)))
        share = assignment.retrain_share_milli
        if job is not None and job.share_milli != share:
            rank = _SHRINK if share < job.share_milli else _GROW
            ranked.append((rank, cmd.ResizeRetraining(stream.stream, job.job, share)))
        elif job is None and assignment.retrain is not None and (share > 0 or assignment.elsewhere):
            option = _option(views[stream.stream], assignment)
            start = cmd.StartRetraining(
                stream=stream.stream,
                job=next_job,
                window=state.window,
                config=option.config,
                share_milli=share,
                expected_accuracy=option.accuracy_after,
                expected_gpu_s=option.gpu_s,
                elsewhere=assignment.elsewhere,
                early_part=option.early_part,
                training_speed=view.training_speed,
            )
            ranked.append((_START, start))
            next_job = JobId(next_job + 1)
    # Stable: within a rank commands stay in the order of the plan.
    ranked.sort(key=itemgetter(0))
    return tuple(command for _, command in ranked)


def _option(stream: StreamView, assignment: Assignment) -> RetrainOption:
    elsewhere = assignment.elsewhere
    if elsewhere is not None and elsewhere.trained_in is not None:
        for model in stream.cached:
            if (model.config, model.trained_in) == (assignment.retrain, elsewhere.trained_in):
                return RetrainOption(model.config, stream.accuracy, 0.0)
    else:
        for option in stream.retrain_options:
            if option.config == assignment.retrain:
                return option
    raise ValueError(f"the plan gives {assignment.stream} a retraining that it was not offered")


def after_command(state: FleetState, command: cmd.Command, now_us: int) -> FleetState:
    """Returns the state after a command is issued at a time.

    Its effects in the world are reported as events.
    """
    match command:
        case cmd.BeginPreparation():
            # A micro-profiler that is loading refuses it, and the loop asks again.
            for asked in () if state.profiler_down else command.streams:
                state = state.with_stream(_to_be_prepared(state.stream(asked.stream), asked, command.window))
            streams = frozenset(asked.stream for asked in command.streams)
            running = RunningPreparation(now_us, command.share_milli, command.round, streams)
            return replace(state, preparation=running, rounds=max(state.rounds, command.round))
        case cmd.SetInference():
            stream = state.stream(command.stream)
            return state.with_stream(
                replace(stream, inference=command.config, inference_share_milli=command.share_milli)
            )
        case cmd.StartRetraining():
            stream = state.stream(command.stream)
            job = RetrainJob(
                job=command.job,
                config=command.config,
                window=command.window,
                share_milli=command.share_milli,
                promised_accuracy=command.expected_accuracy,
                expected_accuracy=command.expected_accuracy,
                expected_gpu_s=command.expected_gpu_s,
                accuracy_before=stream.accuracy,
                elsewhere=command.elsewhere,
                early_part=command.early_part,
            )
            return replace(
                state.with_stream(replace(stream, job=job)),
                next_job=max(state.next_job, JobId(command.job + 1)),
            )
        case cmd.ResizeRetraining():
            # The share at which the job works is unknown until its handle reports it.
            return _with_job(
                state, command, lambda job: replace(job, share_milli=command.share_milli, held_milli=0)
            )
        case cmd.ServeModel():
            return _with_job(
                state, command, lambda job: replace(job, served_epoch=command.epoch, epoch_since_us=None)
            )
        case cmd.StopRetraining():
            return state.with_stream(replace(state.stream(command.stream), job=None))
        case cmd.SetAside():
            stream = state.stream(command.stream)
            faults = replace(stream.faults, set_aside=command.reason)
            return state.with_stream(replace(stream, faults=faults, job=None))
        case cmd.EndPreparation():
            return state.without_preparation()
        case cmd.RestartWorker() | cmd.KeepServing() | cmd.RollBack():
            return state
        case cmd.StartAgain() | cmd.SetAreas():
            return state


def _to_be_prepared(stream: StreamState, asked: cmd.PrepareStream, window: int) -> StreamState:
    profiled_in = window if asked.inference else stream.inference_profiled_in
    prepared = replace(stream, prepared_in=window, inference_profiled_in=profiled_in)
    if asked.since_us is None:
        return prepared
    is_new = asked.since_us != stream.labels.since_us
    return replace(prepared, relabelling=is_new, reactions=stream.reactions + 1)


def _with_job(
    state: FleetState,
    command: cmd.ResizeRetraining | cmd.ServeModel,
    change: Callable[[RetrainJob], RetrainJob],
) -> FleetState:
    stream = state.stream(command.stream)
    if stream.job is None or stream.job.job != command.job:
        return state
    return state.with_stream(replace(stream, job=change(stream.job)))


def at_granted_shares(
    view: WindowView, plan: Plan, fleet: FleetState, options: LoopOptions, needs: Needs
) -> Plan:
    """Returns the plan at shares that can be enforced."""
    shares = shares_of(plan.phases[0])
    if not needs.fixed_shares:
        shares = _with_floors(view, shares, fleet, options)
    return regrant_plan(view, plan, _grants(shares, fleet, options), needs)


def _with_floors(
    view: WindowView, shares: Mapping[Job, int], fleet: FleetState, options: LoopOptions
) -> dict[Job, int]:
    """Raises shares to the inference floors, so that no plan starves inference; per GPU with home GPUs."""
    kept = kept_floors(view, view.capacity_milli)
    if not options.homes:
        return _lifted(view, shares, kept, view.capacity_milli)
    homes = homes_of(fleet, options)
    lifted: dict[Job, int] = {}
    for gpu, free_milli in enumerate(free_milli_at_home(fleet, options)):
        here = {job: share for job, share in shares.items() if homes[job.stream] == gpu}
        lifted |= _lifted(view, here, kept, free_milli)
    return {job: lifted[job] for job in shares}


def _lifted(
    view: WindowView, shares: Mapping[Job, int], kept: Mapping[Job, int], capacity_milli: int
) -> dict[Job, int]:
    """Raises shares to the floors, at the cost of none that a stream has to keep a_MIN, if the others do."""
    floors = inference_floors(view)
    minimum = {job: min(kept.get(job, 0), share) for job, share in shares.items()}
    both = {job: max(floors.get(job, 0), least) for job, least in minimum.items()}
    fits = sum(both.values()) <= capacity_milli
    return with_floors(shares, both if fits else floors, capacity_milli, view.quantum_milli)


def _grants(shares: Mapping[Job, int], fleet: FleetState, options: LoopOptions) -> Grants:
    steps = ShareSteps(options.share_step_milli)
    if options.homes:
        homes = homes_of(fleet, options)
        free = free_milli_at_home(fleet, options)
        return AtHome(options.packing, shares, lambda job: homes[job.stream], free, steps)
    return pack_shares(
        options.packing,
        shares,
        capacity_milli=options.capacity_milli,
        held_milli=held_milli(fleet, options),
        steps=steps,
    )
