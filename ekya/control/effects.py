"""Immediate effects of commands on the loop's state."""

from collections.abc import Callable
from dataclasses import replace

from ekya.core import commands as cmd
from ekya.core.ids import JobId
from ekya.core.state import FleetState, RetrainJob


def after_command(state: FleetState, command: cmd.Command) -> FleetState:
    """Returns the state after a command is issued. Its effects in the world are reported as events."""
    match command:
        case cmd.BeginPreparation():
            for asked in command.streams:
                stream = state.stream(asked.stream)
                profiled_in = command.window if asked.inference else stream.inference_profiled_in
                state = state.with_stream(
                    replace(stream, prepared_in=command.window, inference_profiled_in=profiled_in)
                )
            return replace(state, preparing=True)
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
            return state.with_stream(replace(stream, set_aside=command.reason, job=None))
        case cmd.EndPreparation():
            return replace(state, preparing=False)
        case cmd.RestartWorker() | cmd.KeepServing() | cmd.RollBack():
            return state


def _with_job(
    state: FleetState,
    command: cmd.ResizeRetraining | cmd.ServeModel,
    change: Callable[[RetrainJob], RetrainJob],
) -> FleetState:
    stream = state.stream(command.stream)
    if stream.job is None or stream.job.job != command.job:
        return state
    return state.with_stream(replace(stream, job=change(stream.job)))
