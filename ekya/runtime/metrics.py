"""Per-stream metrics of a run for Ray's dashboard and for Prometheus."""

from ray.util.metrics import Counter, Gauge

from ekya.control.protocols import Batch
from ekya.control.step import StepResult
from ekya.core import events as ev
from ekya.core.gpus import GpuUse
from ekya.core.state import StreamState
from ekya.core.step_record import StepRecord
from ekya.core.units import StreamId
from ekya.results.metrics.health import HealthState
from ekya.results.metrics.health_follower import HealthFollower

_STREAM = ("stream",)
_GPU = ("gpu", "uuid")


class RunMetrics:
    """Gauges and counters that are updated after each step of the loop."""

    def __init__(self) -> None:
        self._accuracy = Gauge("ekya_accuracy", "Estimated accuracy of the model that serves.", _STREAM)
        self._inference = Gauge("ekya_inference_share_milli", "Inference share, as granted.", _STREAM)
        self._retraining = Gauge("ekya_retraining_share_milli", "Retraining share, as granted.", _STREAM)
        self._measured = Gauge("ekya_measured_share_milli", "Share that was really used.", (*_STREAM, "role"))
        self._queue = Gauge("ekya_waiting_events", "Events that the last turn of the loop found waiting.", ())
        self._finished = Counter("ekya_retrainings_finished", "Retrainings that finished.", _STREAM)
        self._failed = Counter("ekya_retrainings_failed", "Retrainings that failed.", _STREAM)
        self._epochs = Counter("ekya_retraining_epochs", "Epochs trained.", _STREAM)
        self._health = Gauge("ekya_health", "1 for the state that a stream is in.", (*_STREAM, "state"))
        self._warnings = Counter("ekya_warnings", "Warnings of the run's processes.", ("source",))
        self._no_memory = Counter("ekya_memory_short", "Jobs that did not fit into GPU memory.", _STREAM)
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
        self._follower = HealthFollower()
        self._told_health: dict[StreamId, HealthState] = {}

    def __call__(self, batch: Batch, turn: StepResult) -> None:
        """Updates the metrics after a step."""
        self._queue.set(len(batch.events))
        for stream in turn.state.fleet.streams:
            self._follow(stream)
        self._follower.follow(StepRecord(batch.now_us, batch.events, turn.plan, turn.commands))
        for name, health in self._follower.now().items():
            if self._told_health.get(name) is not health.state:
                self._told_health[name] = health.state
                for state in HealthState:
                    self._health.set(int(health.state is state), {"stream": name, "state": str(state)})
        for event in batch.events:
            match event:
                case ev.ShareMeasured():
                    self._measured.set(event.share_milli, {"stream": event.stream, "role": str(event.role)})
                case ev.RetrainFinished():
                    self._finished.inc(1, {"stream": event.stream})
                case ev.RetrainFailed():
                    self._failed.inc(1, {"stream": event.stream})
                case ev.RetrainProgress():
                    self._epochs.inc(1, {"stream": event.stream})
                case ev.Warned():
                    self._warnings.inc(1, {"source": event.source})
                case ev.MemoryShort():
                    self._no_memory.inc(1, {"stream": event.stream})
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
        if stream.accuracy is not None:
            self._accuracy.set(stream.accuracy, tags)
        self._inference.set(stream.inference_share_milli, tags)
        self._retraining.set(0 if stream.job is None else stream.job.share_milli, tags)
