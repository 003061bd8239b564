"""Observers of the loop: metrics for Ray's dashboard, models that serve or are removed, and measurements."""

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ray.util.metrics import Counter, Gauge

from ekya.control.protocols import Batch
from ekya.control.step import StepResult
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.commands import StepRecord
from ekya.core.errors import UserError
from ekya.core.gpus import GpuUse
from ekya.core.speed import SpeedCurve
from ekya.core.state import StreamState
from ekya.core.units import JobId, ModelVersion, StreamId
from ekya.pipeline.run_writer import ModelRecord
from ekya.results.metrics.health import HealthState
from ekya.results.metrics.health_follower import HealthFollower
from ekya.results.storage.model_files import remove_spent
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_state import StateStore

_STREAM = ("stream",)
_GPU = ("gpu", "uuid")

_COUNTED: dict[type[ev.Event], tuple[str, str]] = {
    ev.RetrainFinished: ("ekya_retrainings_finished", "Retrainings that finished."),
    ev.RetrainFailed: ("ekya_retrainings_failed", "Retrainings that failed."),
    ev.RetrainProgress: ("ekya_retraining_epochs", "Epochs trained."),
    ev.MemoryShort: ("ekya_memory_short", "Jobs that did not fit into GPU memory."),
}
"""Metric of each event that is counted by stream: its name and description."""


class RunMetrics:
    """Gauges and counters that are updated after each step of the loop."""

    def __init__(self) -> None:
        self._accuracy = Gauge(
            "ekya_accuracy",
            "Estimated accuracy of what answers: the model that serves, or the golden detector.",
            _STREAM,
        )
        self._inference = Gauge("ekya_inference_share_milli", "Inference share, as granted.", _STREAM)
        self._retraining = Gauge("ekya_retraining_share_milli", "Retraining share, as granted.", _STREAM)
        self._measured = Gauge("ekya_measured_share_milli", "Share that was really used.", (*_STREAM, "role"))
        self._queue = Gauge("ekya_waiting_events", "Events that the last step of the loop found waiting.", ())
        self._health = Gauge("ekya_health", "1 for the state that a stream is in.", (*_STREAM, "state"))
        self._warnings = Counter("ekya_warnings", "Warnings of the run's processes.", ("source",))
        self._counted: dict[type[ev.Event], Counter] = {
            kind: Counter(name, text, _STREAM) for kind, (name, text) in _COUNTED.items()
        }
        self._gpu = {
            "memory": Gauge("ekya_gpu_memory_peak_bytes", "Most memory in use in the last window.", _GPU),
            "activity": Gauge(
                "ekya_gpu_sm_activity",
                "Mean activity in the last window, in [0, 1].",
                (*_GPU, "measured_from"),
            ),
            "power": Gauge("ekya_gpu_power_watts", "Mean power in the last window.", _GPU),
        }
        self._energy = Counter("ekya_gpu_energy_joules", "Energy spent.", (*_GPU, "measured_from"))
        self._follower = HealthFollower(windows=1)
        self._health_of: dict[StreamId, HealthState] = {}

    def __call__(self, batch: Batch, result: StepResult) -> None:
        """Updates the metrics after a step."""
        self._queue.set(len(batch.events))
        for stream in result.state.fleet.streams:
            self._follow(stream)
        self._follower.follow_step(StepRecord(batch.now_us, batch.events, result.plan, result.commands))
        for name, health in self._follower.present_health().items():
            if self._health_of.get(name) is not health.state:
                self._health_of[name] = health.state
                for state in HealthState:
                    self._health.set(int(health.state is state), {"stream": name, "state": str(state)})
        for event in batch.events:
            match event:
                case ev.ShareMeasured():
                    self._measured.set(event.share_milli, {"stream": event.stream, "role": str(event.role)})
                case ev.RetrainFinished() | ev.RetrainFailed() | ev.RetrainProgress() | ev.MemoryShort():
                    self._counted[type(event)].inc(1, {"stream": event.stream})
                case ev.Warned():
                    self._warnings.inc(1, {"source": event.source})
                case ev.GpuMeasured():
                    for gpu in event.gpus:
                        self._follow_gpu(gpu)

    def _follow_gpu(self, gpu: GpuUse) -> None:
        """Updates a GPU's metrics; one that was not measured keeps its value."""
        tags = {"gpu": str(gpu.gpu), "uuid": gpu.uuid}
        self._gpu["memory"].set(gpu.memory_peak_bytes, tags)
        if gpu.sm_activity is not None:
            self._gpu["activity"].set(gpu.sm_activity, {**tags, "measured_from": gpu.sm_from})
        if gpu.power_w is not None:
            self._gpu["power"].set(gpu.power_w, tags)
        if gpu.energy_j:
            self._energy.inc(gpu.energy_j, {**tags, "measured_from": gpu.energy_from})

    def _follow(self, stream: StreamState) -> None:
        tags: dict[str, str] = {"stream": stream.stream}
        if stream.answering_accuracy is not None:
            self._accuracy.set(stream.answering_accuracy, tags)
        self._inference.set(stream.inference_share_milli, tags)
        self._retraining.set(0 if stream.job is None else stream.job.share_milli, tags)


_JOBS = 1000
"""Newest retrainings whose weights may still come to serve."""

_MEASUREMENTS = 10_000
"""Newest measurements of a run that are kept for its summary."""


class ModelKeeper:
    """Observer of the loop that records which weights serve; they are in the run folder."""

    def __init__(self, folder: RunFolder, store: StateStore) -> None:
        self._folder, self._store = folder, store
        self._started: dict[JobId, cmd.StartRetraining] = {}

    def __call__(self, batch: Batch, result: StepResult) -> None:
        """Records the model changes of a step."""
        for command in result.commands:
            if isinstance(command, cmd.StartRetraining):
                self._started[command.job] = command
                self._started.pop(JobId(command.job - _JOBS), None)
        for event in batch.events:
            if not isinstance(event, ev.Swapped):
                continue
            record = ModelRecord(self._folder, self._store, event.stream)
            if isinstance(event, ev.RolledBack):
                record.serve_again(event.version, event.of, event.t_us)
            elif started := self._started.get(event.job):
                accuracy = event.validation_accuracy
                record.add_model(event.version, None, started.window, started.config, accuracy, event.t_us)


@dataclass(slots=True, eq=False)
class LoopFacts:
    """Measurements of the loop.

    Attributes:
        start_s: until all actors were ready.
        run_s: length of the run.
        busy_s: time that the loop did not wait.
        planning_ms: duration of each of the newest calls of the scheduler.
        stalls_ms: time without inference, for each of the newest changes of the model that serves.
        late_gpu: frames for which a GPU had no time.
        homes: the GPU or core of each stream at its end.
        training_speed: speed curve as refined by the retrainings; None until one has refined it.
    """

    start_s: float = 0.0
    run_s: float = 0.0
    busy_s: float = 0.0
    planning_ms: Iterable[float] = ()
    stalls_ms: deque[float] = field(default_factory=lambda: deque(maxlen=_MEASUREMENTS))
    late_gpu: int = 0
    homes: Mapping[StreamId, int] = field(default_factory=dict)
    training_speed: SpeedCurve | None = None

    def __call__(self, batch: Batch, result: StepResult) -> None:
        """Follows a step of the loop."""
        self.training_speed = result.state.training_speed
        for event in batch.events:
            if isinstance(event, ev.Swapped):
                self.stalls_ms.append(event.stall_us / 1000)
            elif isinstance(event, ev.FramesCounted):
                self.late_gpu += event.late_gpu

    def summary(self) -> dict[str, float | None]:
        """Returns the values for ``summary.json``."""
        return {
            "start_s": round(self.start_s, 3),
            "run_s": round(self.run_s, 3),
            "control_ms": round(self.busy_s * 1000, 1),
            "control_part": round(self.busy_s / self.run_s, 5) if self.run_s > 0 else None,
        }


_LOG = logging.getLogger(__name__)

_BACK = 2
"""The shadow gate goes back to what served when labels were taken before the last."""


class ModelPruner:
    """Removes earlier weights of a stream at each change of its model. It follows ``ModelKeeper``.

    What may serve again stays, however many models came after it.

    Args:
        folder, store: of the run.
        keep: number of a stream's newest models that stay.
    """

    def __init__(self, folder: RunFolder, store: StateStore, keep: int) -> None:
        self._folder, self._store, self._keep = folder, store, keep
        # Versions that served when the last labels were taken.
        self._at_labels: dict[StreamId, deque[ModelVersion]] = {}
        self._being_labelled: dict[StreamId, ModelVersion] = {}
        # Streams that are told to serve earlier weights, and the windows that may still open before they do.
        self._going_back: dict[StreamId, int] = {}

    def __call__(self, batch: Batch, result: StepResult) -> None:
        """Follows a step of the loop."""
        added = {event.stream for event in batch.events if isinstance(event, ev.StreamAdded)}
        self._forget(added & self._at_labels.keys())  # an earlier one of this name
        versions = {stream.stream: stream.version for stream in result.state.fleet.streams}
        for stream, version in versions.items():
            self._at_labels.setdefault(stream, deque([version], maxlen=_BACK))
        swapped = set()
        for event in batch.events:
            if isinstance(event, ev.WindowOpened):
                going = self._going_back.items()
                self._going_back = {stream: windows - 1 for stream, windows in going if windows}
            elif isinstance(event, ev.LabelsReady) and event.stream in self._being_labelled:
                self._at_labels[event.stream].append(self._being_labelled.pop(event.stream))
            elif isinstance(event, ev.Swapped):
                swapped.add(event.stream)
                if isinstance(event, ev.RolledBack):
                    self._going_back.pop(event.stream, None)
        for command in result.commands:
            if isinstance(command, cmd.BeginPreparation):
                asked = {one.stream for one in command.streams}
                self._being_labelled |= {one: versions[one] for one in asked & versions.keys()}
            elif isinstance(command, cmd.RollBack):
                self._going_back[command.stream] = 1
        for stream in swapped - self._going_back.keys():
            self._prune(stream)
        self._forget(self._at_labels.keys() - versions.keys())

    def _prune(self, stream: StreamId) -> None:
        if stream not in self._at_labels:
            return
        since = self._at_labels[stream][0]
        try:
            remove_spent(self._folder, self._store, stream, self._keep, since)
        except (UserError, OSError) as error:  # the run goes on with more on its disk
            _LOG.warning("%s: earlier weights cannot be removed: %s", stream, error)

    def _forget(self, removed: Iterable[StreamId]) -> None:
        """Forgets streams that were removed from the run."""
        for stream in list(removed):
            del self._at_labels[stream]
            self._being_labelled.pop(stream, None)
            self._going_back.pop(stream, None)


class WindowKeeper:
    """Records windows in ``state.sqlite`` as they open, so that labels can be removed by their age."""

    def __init__(self, store: StateStore) -> None:
        self._store = store

    def __call__(self, batch: Batch, result: StepResult) -> None:
        """Follows a step of the loop."""
        for event in batch.events:
            if isinstance(event, ev.WindowOpened):
                self._store.put_window(event.index, event.t_us, event.end_us)
