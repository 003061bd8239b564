"""Follows retrainings from their begin to their outcome, for reports of runs and pages of services."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.commands import StepRecord
from ekya.core.configs import RetrainConfig
from ekya.core.units import JobId, StreamId

FINISHED, FAILED, STOPPED = "finished", "failed", "stopped"
"""Ends of a retraining: with its last epoch; it broke; by the loop, as at the end of its window."""

SERVED, KEPT = "served", "kept"
"""With ``FAILED`` its outcomes: some of its weights were to serve; the model that served before goes on."""

OUTCOMES = (SERVED, KEPT, FAILED)

_UNKNOWN: Mapping[StreamId, float | None] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class RetrainRun:
    """One retraining from its start to its end, for any reason.

    Attributes:
        ended: ``finished``, ``failed`` or ``stopped``.
        best_accuracy: validation accuracy of its best epoch; None if it reached no epoch.
        gpu_s: GPU-seconds that it had used by its last epoch or its end.
        before: accuracy of the model that served when it began; None if that was unknown.
        served: some of its weights were to serve.
        reason: why none were, in a sentence; empty if some were.
    """

    stream: StreamId
    job: JobId
    window: int
    config: RetrainConfig
    start_us: int
    end_us: int
    ended: str
    expected_accuracy: float
    best_accuracy: float | None
    gpu_s: float
    before: float | None = None
    served: bool = False
    reason: str = ""

    @property
    def outcome(self) -> str:
        """One of ``OUTCOMES``; a checkpoint may serve of one that breaks later."""
        if self.served:
            return SERVED
        return FAILED if self.ended == FAILED else KEPT


class RetrainingFold:
    """Follows all streams' retrainings, of which a stream has one at a time."""

    def __init__(self) -> None:
        self._running: dict[JobId, RetrainRun] = {}

    def follow_step(
        self, step: StepRecord, accuracy: Mapping[StreamId, float | None] = _UNKNOWN
    ) -> list[RetrainRun]:
        """Applies a step of the loop and returns the retrainings that are over with it.

        Args:
            step: the step.
            accuracy: of each stream's serving model after it.
        """
        for event in ev.in_order(step.events):
            self._apply(event)
        for command in step.commands:
            match command:
                case cmd.StartRetraining():
                    self._running[command.job] = _started(command, step.now_us, accuracy)
                case cmd.StopRetraining():
                    self._end(command.job, step.now_us, STOPPED)
                case cmd.SetAside():
                    self._end(self._job_of(command.stream), step.now_us, STOPPED)
                case cmd.ServeModel():
                    self._change(command.job, served=True)
                case cmd.KeepServing() if run := self._running.get(command.job):
                    self._change(command.job, reason=run.reason or command.reason)
        # After the commands: the step in which it ends also says whether its weights serve.
        over = [job for job, run in self._running.items() if run.ended]
        return [_told(self._running.pop(job)) for job in over]

    def stop_all(self, end_us: int) -> list[RetrainRun]:
        """Returns the retrainings that are not over when a run ends, and forgets them."""
        for job in self._running:
            self._end(job, end_us, STOPPED)
        stopped = [_told(run) for run in self._running.values()]
        self._running.clear()
        return stopped

    def _apply(self, event: ev.Event) -> None:
        match event:
            case ev.RetrainProgress() if run := self._running.get(event.job):
                best = max(run.best_accuracy or 0.0, event.validation_accuracy)
                self._change(event.job, best_accuracy=best, gpu_s=event.gpu_s)
            case ev.RetrainFinished():
                self._change(event.job, gpu_s=event.gpu_s)
                self._end(event.job, event.t_us, FINISHED)
            case ev.RetrainFailed():
                self._end(event.job, event.t_us, FAILED, event.reason)
            case ev.WorkerDied(role=ev.Role.RETRAINING):
                self._end(self._job_of(event.stream), event.t_us, FAILED, event.reason)

    def _job_of(self, stream: StreamId) -> JobId | None:
        return next((job for job, run in self._running.items() if run.stream == stream), None)

    def _change(self, job: JobId | None, **changes: Any) -> None:
        if job is not None and job in self._running:
            self._running[job] = replace(self._running[job], **changes)

    def _end(self, job: JobId | None, at_us: int, how: str, reason: str = "") -> None:
        """Ends a retraining, unless it has ended: a worker may die after its last epoch."""
        run = None if job is None else self._running.get(job)
        if run is not None and not run.ended:
            end_us = max(at_us, run.start_us + 1)
            self._change(job, end_us=end_us, ended=how, reason=reason or run.reason)


def _started(
    command: cmd.StartRetraining, now_us: int, accuracy: Mapping[StreamId, float | None]
) -> RetrainRun:
    return RetrainRun(
        stream=command.stream,
        job=command.job,
        window=command.window,
        config=command.config,
        start_us=now_us,
        end_us=now_us + 1,
        ended="",
        expected_accuracy=command.expected_accuracy,
        best_accuracy=None,
        gpu_s=0.0,
        before=accuracy.get(command.stream),
    )


def _told(run: RetrainRun) -> RetrainRun:
    """Returns a retraining that is over with why none of its weights were to serve."""
    reason = run.reason
    if run.served:
        reason = ""
    elif not reason and run.best_accuracy is None:
        reason = "it was stopped before its first epoch was over"
    elif not reason:
        reason = "it was stopped, since there are labels of a newer scene or the camera is gone"
    return replace(run, reason=reason)


def retrainings_of(steps: Sequence[StepRecord], end_us: int) -> tuple[RetrainRun, ...]:
    """Returns the retrainings of a run in the order of their start; those that were not over end with it."""
    fold = RetrainingFold()
    over = [run for step in steps for run in fold.follow_step(step)]
    return tuple(sorted((*over, *fold.stop_all(end_us)), key=lambda run: (run.start_us, run.job)))
