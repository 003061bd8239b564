"""Keeps what a service says of itself, step by step, for readers in other threads."""

import math
import threading
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ekya import __version__
from ekya.control.loop import first_state
from ekya.control.loop_state import LoopState
from ekya.control.protocols import Batch
from ekya.control.step import StepResult
from ekya.core import events as ev
from ekya.core.areas import WHOLE_PICTURE, Areas
from ekya.core.commands import StepRecord
from ekya.core.errors import NotThereError
from ekya.core.preparation_events import AccuracyAudited
from ekya.core.state import RetrainJob, StreamState
from ekya.core.units import US_PER_S, StreamId, us_to_seconds
from ekya.results.metrics.audit import AuditEstimate, AuditTrail
from ekya.results.metrics.health import WELL, Health
from ekya.results.metrics.health_follower import HealthFollower
from ekya.results.metrics.retrainings import OUTCOMES, RetrainingFold, RetrainRun
from ekya.service.history import NOT_COUNTED, CameraHistory, CameraPast
from ekya.service.status import (
    STEP_BOUNDS_S,
    AuditedAccuracy,
    CameraCounts,
    CameraStatus,
    RetrainingCounts,
    RetrainingRow,
    RetrainingStatus,
    Series,
    ServiceStatus,
    StepTimes,
    WarningCount,
    WarningRow,
)

KEPT_RETRAININGS = 50
"""Number of a camera's last retrainings that are remembered."""

KEPT_WARNINGS = 50
"""Number of the newest warnings that are remembered."""

MOST_SOURCES = 100
"""Number of processes whose warnings are counted one by one; those of others are counted together."""

OTHERS = "others"


@dataclass(frozen=True, slots=True)
class KnownCameraTerms:
    """What operators have set for a camera; see ``CameraStatus``."""

    weight: float = 1.0
    frozen: bool = False
    areas: Areas = WHOLE_PICTURE
    analysed_url: str | None = None


@dataclass(frozen=True, slots=True)
class KnownFleetTerms:
    """What operators have set.

    Attributes:
        capacity_milli: all GPUs together, in thousandths of one.
        scheduler: its name.
        cameras: terms that are not the default.
    """

    capacity_milli: int
    scheduler: str
    cameras: Mapping[StreamId, KnownCameraTerms] = field(default_factory=dict)


@dataclass(slots=True)
class _Tally:
    """What the loop's state does not remember of a camera."""

    frames_due: int = 0
    frames_analysed: int = 0
    drifts: int = 0
    labels: int = 0
    labels_us: int | None = None
    why: str = ""
    audits: AuditTrail = field(default_factory=AuditTrail)
    history: CameraHistory = field(default_factory=CameraHistory)
    retrainings: deque[RetrainingRow] = field(default_factory=lambda: deque(maxlen=KEPT_RETRAININGS))
    outcomes: Counter[str] = field(default_factory=Counter)
    earlier: CameraCounts = NOT_COUNTED
    labelled_unix_s: float | None = None

    @staticmethod
    def continued_from(past: CameraPast) -> "_Tally":
        """Returns the tally of a camera that earlier processes of the service have served."""
        return _Tally(
            history=CameraHistory(past.history),
            retrainings=deque(past.retrainings, maxlen=KEPT_RETRAININGS),
            earlier=past.counts,
            labelled_unix_s=past.labels_unix_s,
        )


class StatusKeeper:
    """Observer of the loop whose memory is bounded by the number of cameras.

    One thread calls it with the steps; any thread may read.

    Args:
        name: of the service.
        now_us: run time, as of ``RunClock``.
        unix_us: wall-clock time of a run time, as of ``WallClock``.
        terms: of a state of the loop.
        past: what earlier processes of the service knew of its cameras, as ``past`` returned it.
    """

    def __init__(
        self,
        name: str,
        now_us: Callable[[], int],
        unix_us: Callable[[int], int],
        terms: Callable[[LoopState], KnownFleetTerms],
        past: Mapping[StreamId, CameraPast] = MappingProxyType({}),
    ) -> None:
        self._name = name
        self._now_us, self._unix_us, self._terms = now_us, unix_us, terms
        self._started_unix_s = time.time()
        self._lock = threading.Lock()
        self._state = first_state()
        self._health = HealthFollower(windows=1)
        self._retrainings = RetrainingFold()
        self._tallies: dict[StreamId, _Tally] = {}
        self._past = dict(past)
        self._warnings: deque[WarningRow] = deque(maxlen=KEPT_WARNINGS)
        self._warned: Counter[str] = Counter()
        self._steps = [0] * (len(STEP_BOUNDS_S) + 1)
        self._steps_s = 0.0

    def __call__(self, batch: Batch, result: StepResult) -> None:
        """Takes in a step of the loop."""
        with self._lock:
            self._state = result.state
            streams = result.state.fleet.streams
            names = [stream.stream for stream in streams]
            for name in names:
                if name not in self._tallies:
                    self._begin(name)
            for event in batch.events:
                self._count(event)
            for assignment in result.plan.phases[0].assignments if result.plan is not None else ():
                if assignment.stream in self._tallies:
                    self._tallies[assignment.stream].why = assignment.reason
            step = StepRecord(batch.now_us, batch.events, result.plan, result.commands)
            self._health.follow_step(step)
            for run in self._retrainings.follow_step(step, {one.stream: one.accuracy for one in streams}):
                if run.stream in self._tallies:
                    self._tallies[run.stream].retrainings.append(self._row(run))
                    self._tallies[run.stream].outcomes[run.outcome] += 1
            for stream in streams:
                self._draw(stream, batch.now_us)
            self._forget_all_but(names)
            step_s = us_to_seconds(max(self._now_us() - batch.now_us, 0))
            self._steps[bisect_left(STEP_BOUNDS_S, step_s)] += 1
            self._steps_s += step_s

    def status(self, *, since_start: bool = False) -> ServiceStatus:
        """Returns the service as it is after the last step.

        Args:
            since_start: whether cameras' counts begin at zero with this process.
        """
        with self._lock:
            fleet, health = self._state.fleet, self._health.present_health()
            terms = self._terms(self._state)
            cameras = [
                self._camera(one, health.get(one.stream, WELL), terms, since_start) for one in fleet.streams
            ]
            return ServiceStatus(
                name=self._name,
                version=__version__,
                scheduler=terms.scheduler,
                started_unix_s=self._started_unix_s,
                now_unix_s=time.time(),
                window=fleet.window,
                window_opened_us=fleet.window_open_us,
                window_ends_us=fleet.window_end_us,
                now_us=self._now_us(),
                capacity_milli=terms.capacity_milli,
                preparing=fleet.preparing,
                cameras=tuple(cameras),
                warnings=tuple(self._warnings),
                warning_counts=tuple(WarningCount(*one) for one in sorted(self._warned.items())),
                steps=StepTimes(tuple(self._steps), self._steps_s),
            )

    def series(self, camera: str) -> Series:
        """Returns how accuracy and shares of a camera went.

        Raises:
            NotThereError: there is no such camera.
        """
        with self._lock:
            return self._tally(camera).history.series()

    def retrainings(self, camera: str) -> tuple[RetrainingRow, ...]:
        """Returns the last retrainings of a camera that are over, in the order of their ends.

        Raises:
            NotThereError: there is no such camera.
        """
        with self._lock:
            return tuple(self._tally(camera).retrainings)

    def past(self) -> dict[StreamId, CameraPast]:
        """Returns what is known of each camera, to be kept for the next process of the service."""
        cameras = self.status().cameras
        with self._lock:
            # The lock was free meanwhile: a step may have removed a camera.
            known = {StreamId(one.id): one for one in cameras if one.id in self._tallies}
            # Cameras that no step has shown yet keep what an earlier process knew.
            return self._past | {name: self._past_of(name, one) for name, one in known.items()}

    def _past_of(self, name: StreamId, camera: CameraStatus) -> CameraPast:
        counts = CameraCounts(
            camera.frames_due, camera.frames_analysed, camera.drifts, camera.labels, camera.retrainings
        )
        tally = self._tallies[name]
        return CameraPast(tally.history.past(), tuple(tally.retrainings), counts, camera.labels_unix_s)

    def _begin(self, name: StreamId) -> None:
        past = self._past.pop(name, None)
        self._tallies[name] = _Tally() if past is None else _Tally.continued_from(past)

    def _unix_s(self, t_us: int) -> float:
        return self._unix_us(t_us) / US_PER_S

    def _tally(self, camera: str) -> _Tally:
        tally = self._tallies.get(StreamId(camera))
        if tally is None:
            raise NotThereError(f"there is no camera {camera!r}")
        return tally

    def _count(self, event: ev.Event) -> None:
        match event:
            case ev.Warned():
                source = event.source
                if source not in self._warned and len(self._warned) >= MOST_SOURCES:
                    source = OTHERS
                self._warned[source] += 1
                self._warnings.append(WarningRow(self._unix_s(event.t_us), event.source, event.text))
            case AccuracyAudited() if event.stream in self._tallies:
                self._tallies[event.stream].audits.add_audit(event)
            case ev.FramesCounted() | ev.DriftDetected() | ev.LabelsReady() if event.stream in self._tallies:
                tally = self._tallies[event.stream]
                match event:
                    case ev.FramesCounted():
                        tally.frames_due += event.due
                        tally.frames_analysed += event.analysed
                    case ev.DriftDetected():
                        tally.drifts += 1
                    case ev.LabelsReady() if labels := event.training_crops + event.validation_crops:
                        tally.labels += labels
                        tally.labels_us = event.t_us

    def _row(self, run: RetrainRun) -> RetrainingRow:
        return RetrainingRow(
            job=run.job,
            window=run.window,
            config=run.config.name,
            before=run.before,
            after=run.best_accuracy,
            gpu_s=run.gpu_s,
            outcome=run.outcome,
            reason=run.reason,
            began_unix_s=self._unix_s(run.start_us),
            ended_unix_s=self._unix_s(run.end_us),
        )

    def _audited(self, estimate: AuditEstimate | None) -> AuditedAccuracy | None:
        if estimate is None:
            return None
        return AuditedAccuracy(
            estimate.accuracy,
            estimate.low,
            estimate.high,
            estimate.frames,
            self._unix_s(estimate.since_us),
            self._unix_s(estimate.until_us),
        )

    def _draw(self, stream: StreamState, now_us: int) -> None:
        accuracy = stream.answering_accuracy
        self._tallies[stream.stream].history.add_point(
            now_us,
            (
                self._unix_s(now_us),
                math.nan if accuracy is None else accuracy,
                stream.inference_share_milli,
                0 if stream.job is None else stream.job.share_milli,
            ),
        )

    def _forget_all_but(self, names: list[StreamId]) -> None:
        """Forgets cameras that were removed."""
        self._health.keep_only(names)
        for name in self._tallies.keys() - set(names):
            del self._tallies[name]

    def _camera(
        self, stream: StreamState, health: Health, fleet_terms: KnownFleetTerms, since_start: bool
    ) -> CameraStatus:
        tally, job, inference = self._tallies[stream.stream], stream.job, stream.inference
        earlier = NOT_COUNTED if since_start else tally.earlier
        terms = fleet_terms.cameras.get(stream.stream, KnownCameraTerms())
        return CameraStatus(
            id=stream.stream,
            state=str(stream.status),
            reason=stream.reason,
            health=str(health.state),
            health_reason=f"{health.reason}; {health.remedy}" if health.reason else "",
            accuracy=stream.answering_accuracy,
            audited=self._audited(tally.audits.estimate),
            model_version=stream.version,
            every=None if inference is None else inference.every,
            resolution=None if inference is None else inference.resolution,
            inference_share_milli=stream.inference_share_milli,
            retraining_share_milli=0 if job is None else job.share_milli,
            retraining=None if job is None else _in_progress(job),
            why=tally.why,
            frames_due=earlier.frames_due + tally.frames_due,
            frames_analysed=earlier.frames_analysed + tally.frames_analysed,
            weight=terms.weight,
            frozen=terms.frozen,
            drifts=earlier.drifts + tally.drifts,
            labels=earlier.labels + tally.labels,
            labels_unix_s=(
                tally.labelled_unix_s if tally.labels_us is None else self._unix_s(tally.labels_us)
            ),
            retrainings=RetrainingCounts(
                **{one: getattr(earlier.retrainings, one) + tally.outcomes[one] for one in OUTCOMES}
            ),
            mask=terms.areas.mask,
            zone=terms.areas.zone,
            analysed_url=terms.analysed_url,
        )


def _in_progress(job: RetrainJob) -> RetrainingStatus:
    return RetrainingStatus(
        job=job.job,
        config=job.config.name,
        epoch=len(job.accuracies),
        epochs=job.config.epochs,
        best_accuracy=job.best_accuracy if job.accuracies else None,
        expected_accuracy=job.outlook,
    )
