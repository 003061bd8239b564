"""Follows the retrainings of a service from their begin to their outcome."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from ekya.control.protocols import Batch
from ekya.control.step import StepResult
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.state import RetrainJob, StreamState
from ekya.core.units import StreamId
from ekya.service.status import FAILED, KEPT, SERVED, RetrainingCounts, RetrainingRow

KEPT_ROWS = 50
"""Number of a camera's last retrainings that are remembered."""

_NONE = RetrainingCounts()


@dataclass(slots=True)
class _Running:
    """A retraining in progress; ``refused`` and ``broke`` say why it will not have served."""

    job: RetrainJob
    began_us: int
    before: float | None
    best: float | None
    gpu_s: float
    served: bool = False
    refused: str = ""
    broke: str = ""


@dataclass(slots=True)
class _Camera:
    running: _Running | None = None
    rows: deque[RetrainingRow] = field(default_factory=lambda: deque(maxlen=KEPT_ROWS))
    counts: RetrainingCounts = _NONE


class RetrainingFollower:
    """Keeps the last retrainings of each camera, and numbers by outcome.

    Args:
        unix_s: wall-clock time of a run time in microseconds.
    """

    def __init__(self, unix_s: Callable[[int], float]) -> None:
        self._unix_s = unix_s
        self._cameras: dict[StreamId, _Camera] = {}

    def follow(self, batch: Batch, result: StepResult) -> None:
        """Applies a step of the loop."""
        for event in ev.in_order(batch.events):
            match event:
                case ev.RetrainProgress():
                    if running := self._running(event.stream, event.job):
                        accuracy = event.validation_accuracy
                        running.best = accuracy if running.best is None else max(running.best, accuracy)
                        running.gpu_s = event.gpu_s
                case ev.RetrainFinished():
                    if running := self._running(event.stream, event.job):
                        running.gpu_s = event.gpu_s
                case ev.RetrainFailed():
                    if running := self._running(event.stream, event.job):
                        running.broke = event.reason
                case ev.WorkerDied(role=ev.Role.RETRAINING):
                    if running := self._running(event.stream):
                        running.broke = event.reason
        for command in result.commands:
            match command:
                case cmd.ServeModel():
                    if running := self._running(command.stream, command.job):
                        running.served = True
                case cmd.KeepServing():
                    if running := self._running(command.stream, command.job):
                        running.refused = command.reason
        for stream in result.state.fleet.streams:
            self._compare(stream, batch.now_us)

    def continue_after(self, stream: StreamId, rows: Iterable[RetrainingRow]) -> None:
        """Puts rows of an earlier process before those of a camera, which has none yet."""
        self._cameras[stream] = _Camera(rows=deque(rows, maxlen=KEPT_ROWS))

    def rows(self, stream: StreamId) -> tuple[RetrainingRow, ...]:
        """Returns the last retrainings of a camera that are over, in the order of their ends."""
        camera = self._cameras.get(stream)
        return () if camera is None else tuple(camera.rows)

    def counts(self, stream: StreamId) -> RetrainingCounts:
        """Returns the numbers of a camera's retrainings that are over."""
        camera = self._cameras.get(stream)
        return _NONE if camera is None else camera.counts

    def keep_only(self, streams: Iterable[StreamId]) -> None:
        """Forgets all other cameras."""
        for name in self._cameras.keys() - set(streams):
            del self._cameras[name]

    def _running(self, stream: StreamId, job: int | None = None) -> _Running | None:
        """Returns the retraining that is in progress on a camera, if it is this one."""
        camera = self._cameras.get(stream)
        running = None if camera is None else camera.running
        return running if running is not None and job in (None, running.job.job) else None

    def _compare(self, stream: StreamState, now_us: int) -> None:
        """Ends the retraining that the state has no more, and begins the one that it has.

        A resumed service finds retrainings in its first state.
        """
        camera = self._cameras.setdefault(stream.stream, _Camera())
        running, job = camera.running, stream.job
        if running is not None and (job is None or job.job != running.job.job):
            row = self._row(running, now_us)
            camera.rows.append(row)
            camera.counts = replace(camera.counts, **{row.outcome: getattr(camera.counts, row.outcome) + 1})
            camera.running = None
        if job is not None and camera.running is None:
            best = job.best_accuracy if job.accuracies else None
            served = job.served_epoch > 0
            camera.running = _Running(job, now_us, stream.accuracy, best, job.gpu_s, served)

    def _row(self, running: _Running, now_us: int) -> RetrainingRow:
        outcome, reason = _outcome(running)
        return RetrainingRow(
            job=running.job.job,
            window=running.job.window,
            config=running.job.config.name,
            before=running.before,
            after=running.best,
            gpu_s=running.gpu_s,
            outcome=outcome,
            reason=reason,
            began_unix_s=self._unix_s(running.began_us),
            ended_unix_s=self._unix_s(now_us),
        )


def _outcome(running: _Running) -> tuple[str, str]:
    """Returns the outcome, and why nothing of it served; a checkpoint may have before it broke."""
    if running.served:
        return SERVED, ""
    if running.broke:
        return FAILED, running.broke
    if running.refused:
        return KEPT, running.refused
    if running.best is None:
        return KEPT, "it was stopped before its first epoch was over"
    return KEPT, "it was stopped, since there are labels of a newer scene or the camera is gone"
