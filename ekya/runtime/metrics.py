"""What Ray's dashboard, and whatever scrapes it, can plot of a run, per stream."""

from ray.util.metrics import Counter, Gauge

from ekya.control.protocols import Batch
from ekya.control.step import Turn
from ekya.core import events as ev
from ekya.core.state import StreamState

_STREAM = ("stream",)


class RunMetrics:
    """Gauges and counters that follow the loop."""

    def __init__(self) -> None:
        self._accuracy = Gauge("ekya_accuracy", "Estimated accuracy of the model that serves.", _STREAM)
        self._inference = Gauge("ekya_inference_share_milli", "Inference share, as granted.", _STREAM)
        self._retraining = Gauge("ekya_retraining_share_milli", "Retraining share, as granted.", _STREAM)
        self._measured = Gauge("ekya_measured_share_milli", "Share that was really used.", (*_STREAM, "role"))
        self._queue = Gauge("ekya_waiting_events", "Events that the last turn of the loop found waiting.", ())
        self._finished = Counter("ekya_retrainings_finished", "Retrainings that finished.", _STREAM)
        self._failed = Counter("ekya_retrainings_failed", "Retrainings that failed.", _STREAM)
        self._epochs = Counter("ekya_retraining_epochs", "Epochs trained.", _STREAM)

    def __call__(self, batch: Batch, turn: Turn) -> None:
        """Follows a turn."""
        self._queue.set(len(batch.events))
        for stream in turn.state.fleet.streams:
            self._follow(stream)
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

    def _follow(self, stream: StreamState) -> None:
        tags: dict[str, str] = {"stream": stream.stream}
        if stream.accuracy is not None:
            self._accuracy.set(stream.accuracy, tags)
        self._inference.set(stream.inference_share_milli, tags)
        self._retraining.set(0 if stream.job is None else stream.job.share_milli, tags)
