"""Replay of a run's journal over a trace: accuracies and durations of the run's own decisions.

Other decisions would give other accuracies and durations; the replay leaves only the error of the trace.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.commands import StepRecord
from ekya.core.configs import RetrainConfig
from ekya.core.profile import family_of
from ekya.core.trace import BASE, Origin, StreamTrace, Trace
from ekya.core.units import JobId, StreamId, us_to_seconds
from ekya.simulation.shares import ShareWork
from ekya.simulation.trace.stream import TraceModel, TraceStream, training_for

Accuracies = Mapping[tuple[StreamId, int], float]
"""Accuracy in [0, 1] by stream and window."""

Durations = Mapping[tuple[StreamId, int], float]
"""Seconds that the retraining of a stream in a window took."""


def accuracies_of(trace: Trace, turns: Sequence[StepRecord]) -> Accuracies:
    """Returns the trace's accuracy of the models served in a run, in each window of each stream."""
    found: dict[tuple[StreamId, int], float] = {}
    for stream in trace.streams:
        served = _played(stream, trace, turns)
        for window in range(len(stream.windows)):
            found[stream.stream, window] = served.mean_accuracy(window)
    return found


def durations_of(trace: Trace, turns: Sequence[StepRecord], checkpoint_delay_us: int) -> Durations:
    """Returns the trace's durations of a run's finished retrainings, at the shares that they had."""
    found: dict[tuple[StreamId, int], float] = {}
    for stream in trace.streams:
        origin = BASE
        jobs: dict[JobId, _Running] = {}
        for turn in turns:
            for event in turn.events:
                job = jobs.get(event.job) if isinstance(event, ev.ModelSwapped | ev.RetrainFinished) else None
                if job is None:
                    continue
                if isinstance(event, ev.ModelSwapped):
                    origin = Origin(job.window, family_of(job.config))
                elif job.work.due_us is not None:
                    found[stream.stream, job.window] = us_to_seconds(job.work.due_us - job.start_us)
                    jobs[event.job] = replace(job, finished=True)
            for command in turn.commands:
                match command:
                    case cmd.StartRetraining() if command.stream == stream.stream and command.window < len(
                        stream.windows
                    ):
                        running = _running(trace, stream, command, origin, turn.now_us)
                        if running is not None:
                            jobs[command.job] = running
                    case cmd.ResizeRetraining() if command.job in jobs:
                        jobs[command.job].work.resize(command.share_milli, turn.now_us)
                    case cmd.ServeModel() if command.job in jobs and not jobs[command.job].finished:
                        jobs[command.job].work.delay(checkpoint_delay_us)
    return found


@dataclass(frozen=True, slots=True)
class _Running:
    """A retraining of the run, with its work by the trace."""

    window: int
    config: RetrainConfig
    start_us: int
    work: ShareWork
    finished: bool = False


def _running(
    trace: Trace, stream: StreamTrace, command: cmd.StartRetraining, origin: Origin, now_us: int
) -> _Running | None:
    training = training_for(stream.windows[command.window], command.config, origin)
    if training is None:
        return None
    gpu_s = training.epochs[command.config.epochs - 1].gpu_s
    work = ShareWork(trace.training_speed, now_us, command.share_milli, gpu_s)
    return _Running(command.window, command.config, now_us, work)


def _played(stream: StreamTrace, trace: Trace, turns: Sequence[StepRecord]) -> TraceStream:
    served = TraceStream(stream, trace.window_us, trace.inference_speed)
    jobs: dict[JobId, TraceModel] = {}
    for turn in turns:
        for event in turn.events:
            if isinstance(event, ev.ModelSwapped) and event.stream == stream.stream:
                served.serve(jobs[event.job], turn.now_us)
        for command in turn.commands:
            match command:
                case cmd.SetInference() if command.stream == stream.stream:
                    served.configure(command.config, command.share_milli, turn.now_us)
                case cmd.StartRetraining() if command.stream == stream.stream and command.window < len(
                    stream.windows
                ):
                    here = stream.windows[command.window]
                    training = training_for(here, command.config, served.origin)
                    jobs[command.job] = TraceModel(command.window, training)
                case cmd.ServeModel() if command.job in jobs:
                    jobs[command.job] = replace(jobs[command.job], epoch=command.epoch)
    served.advance(trace.windows * trace.window_us)
    return served
