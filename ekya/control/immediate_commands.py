"""Commands that an event requires independently of a plan: what serves, what is kept and what is ended."""

from collections.abc import Iterator

from ekya.control.checkpointing import worth_serving
from ekya.control.loop_state import LoopState, options_known
from ekya.control.options import LoopOptions
from ekya.control.preparation_timing import may_prepare_late, window_preparation
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core import requests as rq
from ekya.core.state import FleetState, RetrainJob, StreamState
from ekya.core.stream_faults import OVER, Status
from ekya.core.weights import Compared
from ekya.planning.adaptation.shadow_gate import why_back, why_not
from ekya.planning.schedulers.scheduler import Needs


def immediate_commands(
    before: FleetState,
    after: LoopState,
    event: ev.Event,
    now_us: int,
    options: LoopOptions,
    needs: Needs,
) -> Iterator[cmd.Command]:
    """Yields commands that an event requires independently of a plan."""
    match event:
        case ev.WindowOpened() if event.index > 0 and now_us < event.end_us:
            yield from _preparing(after, now_us, options, needs)
        case ev.ProfilerBack() if may_prepare_late(before, event.t_us, options):
            yield from _preparing(after, now_us, options, needs)
        case ev.LabelsReady() if event.window == before.window:
            stream = before.stream(event.stream)
            usable = min(event.training_crops, event.validation_crops) > 0
            # A retraining on the scene before makes room for one on the new scene, if that can begin.
            if event.of_new_scene and usable:
                yield from _stopping(stream)
            yield from _rolling_back(after.fleet.stream(event.stream), event.compared, options)
        case ev.PreparationEnded() if before.ends_preparation(event):
            yield cmd.EndPreparation(event.window, event.round)
        case ev.RetrainProgress():
            stream = after.fleet.stream(event.stream)
            job = stream.job
            if job is None or stream.relabelling or _comes_whole(job, needs):
                return
            if worth_serving(stream, job, now_us, after.fleet.window_end_us, options):
                yield cmd.ServeModel(event.stream, job.job, job.best_epoch)
        case ev.RetrainFinished() | ev.RetrainFailed():
            job = before.stream(event.stream).job
            if job is not None and job.job == event.job:
                # Of the state before: after the event it has no job any more.
                yield from _through_gate(before.stream(event.stream), job, options.serve_margin, needs)
        case ev.WindowClosed():
            if before.preparation is not None:
                yield cmd.EndPreparation(event.index, before.preparation.round)
            for stream in before.streams:
                # A model that is late from the cloud serves when it arrives.
                if stream.job is not None and not needs.elsewhere:
                    # What is to serve comes first: a stopped retraining has no weights to give.
                    yield from _through_gate(stream, stream.job, options.serve_margin, needs)
                    yield from _stopping(stream)
        case (
            ev.StreamEnded() | rq.StreamRemoved() | rq.ModelFrozen(frozen=True) | rq.StreamPaused(paused=True)
        ):
            # No frames are served, or no new weights shall serve: the share is freed immediately.
            yield from _stopping(before.stream(event.stream))
        case rq.AreasChanged():
            yield cmd.SetAreas(event.stream, event.areas)
        case rq.CapacityChanged() | rq.RollBackRequested() | rq.RestartRequested():
            yield from _asked_for(before, event, options)
        case ev.WorkerDied():
            yield from _after_death(before.stream(event.stream), after.fleet.stream(event.stream), event.role)
        case ev.StreamReadmitted() | rq.StreamPaused(paused=False):
            yield from _starting_again(before.stream(event.stream), after.fleet.stream(event.stream))
        case _:
            return


def _preparing(
    state: LoopState, now_us: int, options: LoopOptions, needs: Needs
) -> Iterator[cmd.BeginPreparation]:
    """Yields the preparation of the open window."""
    command = window_preparation(state.fleet, state.histories, now_us, options_known(options, state), needs)
    if command is not None:
        yield command


def _after_death(was: StreamState, now: StreamState, role: ev.Role) -> Iterator[cmd.Command]:
    """Yields a command to start a dead worker again, or to set its stream aside."""
    if now.status not in OVER:
        yield cmd.RestartWorker(now.stream, role)
    elif now.status is Status.SET_ASIDE and was.status is not Status.SET_ASIDE:
        yield cmd.SetAside(now.stream, now.reason)


def _starting_again(was: StreamState, now: StreamState) -> Iterator[cmd.RestartWorker]:
    """Yields commands to start the workers of a stream again that is set aside no more."""
    if was.status is Status.SET_ASIDE and now.status not in OVER:
        for role in ev.Role:
            yield cmd.RestartWorker(now.stream, role)


def _asked_for(
    fleet: FleetState,
    event: rq.CapacityChanged | rq.RollBackRequested | rq.RestartRequested,
    options: LoopOptions,
) -> Iterator[cmd.Command]:
    """Yields commands that an operator's request requires."""
    match event:
        case rq.CapacityChanged() if event.capacity_milli < options.capacity_milli:
            yield from _ending_what_stays(fleet)
        case rq.RollBackRequested() if fleet.stream(event.stream).status not in OVER:
            yield cmd.RollBack(event.stream, "an operator has asked for it", event.version)
        case rq.RestartRequested():
            yield cmd.StartAgain(event.reason)


def _ending_what_stays(fleet: FleetState) -> Iterator[cmd.EndPreparation | cmd.StopRetraining]:
    """Yields commands to end what holds a share that no plan changes."""
    if fleet.preparation is not None:
        yield cmd.EndPreparation(fleet.window, fleet.preparation.round)
    for stream in fleet.streams:
        if stream.status is not Status.SERVING:
            yield from _stopping(stream)


def _stopping(stream: StreamState) -> Iterator[cmd.StopRetraining]:
    """Yields a command to end the retraining of a stream, if one is running."""
    if stream.job is not None:
        yield cmd.StopRetraining(stream.stream, stream.job.job)


def _rolling_back(
    stream: StreamState, compared: Compared | None, options: LoopOptions
) -> Iterator[cmd.RollBack]:
    """Yields a command to serve the weights before again, if new labels say that these do better."""
    reason = None if compared is None else why_back(compared, options.roll_back_margin)
    if reason is not None and stream.status not in OVER and not stream.frozen:
        yield cmd.RollBack(stream.stream, reason)


def _through_gate(stream: StreamState, job: RetrainJob, margin: float, needs: Needs) -> Iterator[cmd.Command]:
    """Yields a command to serve a finished job's best weights, unless they serve already or the gate refuses.

    Weights that a scheduler trains elsewhere always serve: the serving model was not measured on the same
    labels. Weights from another server were measured on the labels here.
    """
    if _comes_whole(job, needs) and job.accuracies:
        yield cmd.ServeModel(stream.stream, job.job, job.best_epoch)
        return
    if job.best_epoch <= job.served_epoch:
        return
    if stream.relabelling:
        reason: str | None = "the scene has changed since its labels were made"
    else:
        reason = why_not(job.best_accuracy, stream.accuracy or 0.0, margin)
    if reason is None:
        yield cmd.ServeModel(stream.stream, job.job, job.best_epoch)
    else:
        yield cmd.KeepServing(stream.stream, job.job, job.best_epoch, reason)


def _comes_whole(job: RetrainJob, needs: Needs) -> bool:
    """Returns whether a scheduler's remote or cached model arrives once; other servers send every epoch."""
    return job.elsewhere is not None and (needs.elsewhere or needs.kept_models)
