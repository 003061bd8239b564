"""Turns the state of the control loop into what a person sees during a run."""

import logging
from collections import Counter, defaultdict
from collections.abc import Sequence

from ekya.control.options import LoopOptions
from ekya.control.protocols import Batch
from ekya.control.step import StepResult
from ekya.core.commands import StepRecord
from ekya.core.events import Warned
from ekya.core.state import FleetState, StreamState
from ekya.core.stream_faults import Status
from ekya.core.units import StreamId
from ekya.results.metrics.health import WELL, Health
from ekya.results.metrics.health_follower import HealthFollower
from ekya.results.metrics.script_events import Cue, CueFollower
from ekya.results.report.screen import ScreenRow, ScreenState, Show
from ekya.results.report.tables import cue_line

_LOG = logging.getLogger(__name__)

_TEXTS = 1000
"""Newest texts of warnings that are not logged again."""


class ProgressObserver:
    """Shows every step of the loop on a screen."""

    def __init__(self, show: Show, options: LoopOptions, note: str = "") -> None:
        self._show = show
        self._options = options
        self._note = note
        # For means over time: sums of accuracy times microseconds, and of microseconds.
        self._accuracy_us: dict[StreamId, float] = defaultdict(float)
        self._known_us: Counter[StreamId] = Counter()
        self._health = HealthFollower(windows=1)
        self._shown_us = 0

    def __call__(self, batch: Batch, step: StepResult) -> None:
        """Shows the state after a step."""
        fleet = step.state.fleet
        passed_us = max(batch.now_us - self._shown_us, 1)
        self._shown_us = batch.now_us
        for stream in fleet.streams:
            accuracy = stream.answering_accuracy
            if accuracy is not None:
                self._accuracy_us[stream.stream] += accuracy * passed_us
                self._known_us[stream.stream] += passed_us
        self._health.follow_step(StepRecord(batch.now_us, batch.events, step.plan, step.commands))
        self._show(self._state(batch.now_us, fleet))

    def _state(self, now_us: int, fleet: FleetState) -> ScreenState:
        health = self._health.present_health()
        return ScreenState(
            now_us=now_us,
            window=max(fleet.window, 0),
            window_count=self._options.windows,
            window_start_us=fleet.window_open_us,
            window_end_us=fleet.window_end_us,
            capacity_milli=self._options.capacity_milli,
            rows=tuple(
                self._row(stream, fleet.is_preparing(stream.stream), health.get(stream.stream, WELL))
                for stream in fleet.streams
            ),
            note=self._note,
        )

    def _row(self, stream: StreamState, preparing: bool, health: Health) -> ScreenRow:
        job = stream.job
        known_us = self._known_us[stream.stream]
        status = "preparing" if preparing and stream.status is Status.SERVING else str(stream.status)
        return ScreenRow(
            stream=stream.stream,
            status=status,
            accuracy_now=stream.answering_accuracy,
            accuracy_mean=self._accuracy_us[stream.stream] / known_us if known_us else None,
            training=None if job is None else job.config,
            training_progress=None if job is None else len(job.accuracies) / job.config.epochs,
            inference=stream.inference,
            retrain_share_milli=0 if job is None else job.share_milli,
            inference_share_milli=stream.inference_share_milli,
            health=health,
        )


class WarningLogger:
    """Logs the warnings of the run's processes, each text once until many others came."""

    def __init__(self) -> None:
        self._said: dict[str, None] = {}

    def __call__(self, batch: Batch) -> None:
        """Logs the new warnings of a step."""
        for event in batch.events:
            if isinstance(event, Warned) and event.text not in self._said:
                self._said[event.text] = None
                if len(self._said) > _TEXTS:
                    del self._said[next(iter(self._said))]
                _LOG.warning("%s: %s", event.source, event.text)


class ScriptLogger:
    """Logs the events of a fleet's script as they occur, and the shares before and after."""

    def __init__(self, cues: Sequence[Cue]) -> None:
        self._follower = CueFollower(cues)

    def __call__(self, batch: Batch, step: StepResult) -> None:
        """Logs the script events of a step."""
        for cue in self._follower.follow_step(
            StepRecord(batch.now_us, batch.events, step.plan, step.commands)
        ):
            _LOG.info("%s", cue_line(cue))
