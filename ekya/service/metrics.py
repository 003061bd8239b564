"""Metrics of a service, declared once, and their text as Prometheus reads it.

Endpoint, reference, dashboard and alert rules come from here.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate

from prometheus_client import generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)

from ekya.core.stream_faults import Status
from ekya.core.units import FULL_GPU_MILLI, us_to_seconds
from ekya.results.metrics.health import HealthState
from ekya.results.metrics.retrainings import OUTCOMES
from ekya.service.host_facts import ServiceHostFacts, SinkFacts
from ekya.service.status import STEP_BOUNDS_S, AuditedAccuracy, CameraStatus, ServiceStatus, StepTimes


class MetricKind(StrEnum):
    """Type of a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Facts:
    """What metrics are read from."""

    status: ServiceStatus
    host: ServiceHostFacts


Labels = tuple[str, ...]
"""Values of a metric's labels, in their order."""

Samples = Iterable[tuple[Labels, float | StepTimes]]
"""Values of a metric now; ``StepTimes`` of a histogram, numbers of all others."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        name: with its unit, by Prometheus's conventions.
        kind: its type.
        help: what it means, in a sentence.
        labels: their names. Their values are few: cameras that there are, states, processes, sinks.
        read: returns its samples.
    """

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...]
    read: Callable[[Facts], Samples]


def _service(name: str, kind: MetricKind, text: str, read: Callable[[Facts], float | StepTimes]) -> Metric:
    """Declares a metric of the whole service."""
    return Metric(name, kind, text, (), lambda facts: [((), read(facts))])


def _stream(name: str, kind: MetricKind, text: str, read: Callable[[CameraStatus], float | None]) -> Metric:
    """Declares a metric of each camera; it has no sample while it is unknown."""

    def samples(facts: Facts) -> Samples:
        for camera in facts.status.cameras:
            value = read(camera)
            if value is not None:
                yield (camera.id,), value

    return Metric(name, kind, text, ("stream",), samples)


def _audited(name: str, text: str, read: Callable[[AuditedAccuracy], float]) -> Metric:
    """Declares a gauge of each camera's audited accuracy."""
    return _stream(
        name, MetricKind.GAUGE, text, lambda camera: None if camera.audited is None else read(camera.audited)
    )


def _split(
    name: str, kind: MetricKind, text: str, label: str, read: Callable[[CameraStatus], Mapping[str, float]]
) -> Metric:
    """Declares a metric of each camera that is split by another label."""

    def samples(facts: Facts) -> Samples:
        for camera in facts.status.cameras:
            for value, number in read(camera).items():
                yield (camera.id, value), number

    return Metric(name, kind, text, ("stream", label), samples)


def _sink(name: str, kind: MetricKind, text: str, read: Callable[[SinkFacts], float]) -> Metric:
    """Declares a metric of each sink of answers."""
    return Metric(
        name, kind, text, ("sink",), lambda facts: [((one.name,), read(one)) for one in facts.host.sinks]
    )


def _share(milli: int) -> float:
    return milli / FULL_GPU_MILLI


def _newest_labels(facts: Facts) -> Samples:
    """Yields the times of the newest labels, so that an alert also sees a stream that has never had any."""
    for camera in facts.status.cameras:
        unix_s = camera.labels_unix_s
        yield (camera.id,), facts.status.started_unix_s if unix_s is None else unix_s


def _answer_ages(facts: Facts) -> Samples:
    """Yields the ages of the newest answers of the cameras that there are."""
    for camera in facts.status.cameras:
        answered_unix_s = facts.host.answered_unix_s.get(camera.id)
        if answered_unix_s is not None:
            yield (camera.id,), max(facts.status.now_unix_s - answered_unix_s, 0.0)


_STREAM_METRICS = (
    _stream(
        "ekya_stream_accuracy_ratio",
        MetricKind.GAUGE,
        "Estimated accuracy of what answers: the model that serves, or the golden detector.",
        lambda camera: camera.accuracy,
    ),
    _audited(
        "ekya_stream_audited_accuracy_ratio",
        "Accuracy of the answers of the last hour on frames that nothing learnt from, by the golden model.",
        lambda audited: audited.accuracy,
    ),
    _audited(
        "ekya_stream_audited_accuracy_low_ratio",
        "Lower bound of its 95% interval.",
        lambda audited: audited.low,
    ),
    _audited(
        "ekya_stream_audited_accuracy_high_ratio",
        "Upper bound of its 95% interval.",
        lambda audited: audited.high,
    ),
    _audited(
        "ekya_stream_audited_frames",
        "Number of frames that it was measured on.",
        lambda audited: audited.frames,
    ),
    _stream(
        "ekya_stream_inference_share_ratio",
        MetricKind.GAUGE,
        "Share of a GPU that is granted to inference.",
        lambda camera: _share(camera.inference_share_milli),
    ),
    _stream(
        "ekya_stream_retraining_share_ratio",
        MetricKind.GAUGE,
        "Share of a GPU that is granted to retraining.",
        lambda camera: _share(camera.retraining_share_milli),
    ),
    _split(
        "ekya_stream_health",
        MetricKind.GAUGE,
        "1 for the health that a stream is in, 0 for the others.",
        "state",
        lambda camera: {str(state): float(camera.health == state) for state in HealthState},
    ),
    _split(
        "ekya_stream_state",
        MetricKind.GAUGE,
        "1 for the state that a stream is in, 0 for the others.",
        "state",
        lambda camera: {str(state): float(camera.state == state) for state in Status},
    ),
    _stream(
        "ekya_stream_frozen",
        MetricKind.GAUGE,
        "1 if an operator keeps the stream from being retrained.",
        lambda camera: float(camera.frozen),
    ),
    _stream(
        "ekya_stream_model_version",
        MetricKind.GAUGE,
        "Version of the model that serves; 0 is the base model.",
        lambda camera: camera.model_version,
    ),
    _stream(
        "ekya_stream_frames_due_total",
        MetricKind.COUNTER,
        "Frames that were to be analysed.",
        lambda camera: camera.frames_due,
    ),
    _stream(
        "ekya_stream_frames_analysed_total",
        MetricKind.COUNTER,
        "Frames that were analysed.",
        lambda camera: camera.frames_analysed,
    ),
    _split(
        "ekya_stream_retrainings_total",
        MetricKind.COUNTER,
        "Retrainings that are over: served, kept from serving, or failed.",
        "outcome",
        lambda camera: {outcome: getattr(camera.retrainings, outcome) for outcome in OUTCOMES},
    ),
    _stream(
        "ekya_stream_drifts_total",
        MetricKind.COUNTER,
        "Changes of the scene that were noticed.",
        lambda camera: camera.drifts,
    ),
    _stream(
        "ekya_stream_labels_total",
        MetricKind.COUNTER,
        "Labels that the golden model made.",
        lambda camera: camera.labels,
    ),
    Metric(
        "ekya_stream_last_labels_timestamp_seconds",
        MetricKind.GAUGE,
        "When the newest labels came; before the first, when the service was started.",
        ("stream",),
        _newest_labels,
    ),
    Metric(
        "ekya_stream_answer_age_seconds",
        MetricKind.GAUGE,
        "Age of the newest answer; none before the first.",
        ("stream",),
        _answer_ages,
    ),
)

_SERVICE_METRICS = (
    _service(
        "ekya_service_start_timestamp_seconds",
        MetricKind.GAUGE,
        "When the service was started last.",
        lambda facts: facts.status.started_unix_s,
    ),
    _service(
        "ekya_service_restarts_total",
        MetricKind.COUNTER,
        "How often the service was restarted after it had died.",
        lambda facts: facts.host.restarts,
    ),
    _service(
        "ekya_service_gpus",
        MetricKind.GAUGE,
        "GPUs that may be shared out; cores where there are none.",
        lambda facts: _share(facts.status.capacity_milli),
    ),
    _service(
        "ekya_service_window",
        MetricKind.GAUGE,
        "Index of the open retraining window.",
        lambda facts: facts.status.window,
    ),
    _service(
        "ekya_service_window_seconds",
        MetricKind.GAUGE,
        "Length of the open retraining window.",
        lambda facts: us_to_seconds(facts.status.window_ends_us - facts.status.window_opened_us),
    ),
    _service(
        "ekya_service_preparing",
        MetricKind.GAUGE,
        "1 while labels and profiles are made.",
        lambda facts: float(facts.status.preparing),
    ),
    _service(
        "ekya_service_memory_bytes",
        MetricKind.GAUGE,
        "Memory that the service's processes hold for themselves alone.",
        lambda facts: facts.host.memory_bytes,
    ),
    _service(
        "ekya_service_folder_bytes",
        MetricKind.GAUGE,
        "Size of the service's folder.",
        lambda facts: facts.host.folder_bytes,
    ),
    _service(
        "ekya_service_disk_free_bytes",
        MetricKind.GAUGE,
        "Free space on the folder's disk.",
        lambda facts: facts.host.disk_free_bytes,
    ),
    _service(
        "ekya_service_disk_size_bytes",
        MetricKind.GAUGE,
        "Size of the folder's disk.",
        lambda facts: facts.host.disk_size_bytes,
    ),
    _service(
        "ekya_loop_step_seconds",
        MetricKind.HISTOGRAM,
        "Duration of the control loop's steps, with plans and the hand-over of commands.",
        lambda facts: facts.status.steps,
    ),
    Metric(
        "ekya_warnings_total",
        MetricKind.COUNTER,
        "Warnings of the service's processes.",
        ("source",),
        lambda facts: [((one.source,), one.count) for one in facts.status.warning_counts],
    ),
)

_ANSWER_METRICS = (
    _sink(
        "ekya_answers_delivered_total",
        MetricKind.COUNTER,
        "Answers that a sink has confirmed.",
        lambda sink: sink.delivered,
    ),
    _sink(
        "ekya_answers_lost_total",
        MetricKind.COUNTER,
        "Frames that were removed before a sink had confirmed their answers.",
        lambda sink: sink.lost_frames,
    ),
    _sink(
        "ekya_answers_waiting",
        MetricKind.GAUGE,
        "Frames whose answers a sink has not confirmed yet.",
        lambda sink: sink.waiting_frames,
    ),
    _sink(
        "ekya_answers_waiting_seconds",
        MetricKind.GAUGE,
        "Age of the oldest answer that a sink has not confirmed; 0 without any.",
        lambda sink: sink.waiting_s,
    ),
)

METRICS = (*_STREAM_METRICS, *_SERVICE_METRICS, *_ANSWER_METRICS)
"""All metrics, in the order of the endpoint's text."""


_Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
_FAMILIES: Mapping[MetricKind, Callable[..., _Family]] = {
    MetricKind.COUNTER: CounterMetricFamily,
    MetricKind.GAUGE: GaugeMetricFamily,
    MetricKind.HISTOGRAM: HistogramMetricFamily,
}


class Exposition:
    """Makes the text from what holds at the moment of a scrape, so a camera that was removed leaves nothing.

    Args:
        status: returns the service's status.
        host: returns what it takes of its machine.
    """

    def __init__(self, status: Callable[[], ServiceStatus], host: Callable[[], ServiceHostFacts]) -> None:
        self._status, self._host = status, host

    def metrics_text(self) -> bytes:
        """Returns the text of all metrics."""
        return generate_latest(self)

    def collect(self) -> Iterator[_Family]:
        """Yields the metrics with their samples; called by ``prometheus_client``."""
        # Read once, so that all samples of a scrape are of one moment.
        facts = Facts(self._status(), self._host())
        for metric in METRICS:
            yield _family(metric, facts)


def _family(metric: Metric, facts: Facts) -> _Family:
    family = _FAMILIES[metric.kind](metric.name, metric.help, labels=metric.labels)
    for labels, value in metric.read(facts):
        match family, value:
            case HistogramMetricFamily(), StepTimes():
                bounds = [*(str(bound) for bound in STEP_BOUNDS_S), "+Inf"]
                # A bucket of Prometheus counts all values up to its bound, also those of smaller buckets.
                buckets = list(zip(bounds, accumulate(value.counts), strict=True))
                family.add_metric(labels, buckets, value.sum_s)
            case ((CounterMetricFamily() | GaugeMetricFamily()), (int() | float())):
                family.add_metric(labels, value)
            case _:
                raise TypeError(f"{metric.name}: {value!r} is no sample of a {metric.kind}")
    return family
