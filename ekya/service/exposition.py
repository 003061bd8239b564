"""Text of a service's metrics, as Prometheus reads it."""

from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate

from prometheus_client import generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)

from ekya.service.host_facts import HostFacts
from ekya.service.metrics import METRICS, Facts, Kind, Metric
from ekya.service.status import STEP_BOUNDS_S, ServiceStatus, StepTimes

_Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
_FAMILIES: Mapping[Kind, Callable[..., _Family]] = {
    Kind.COUNTER: CounterMetricFamily,
    Kind.GAUGE: GaugeMetricFamily,
    Kind.HISTOGRAM: HistogramMetricFamily,
}


class Exposition:
    """Makes the text from what holds at the moment of a scrape, so a camera that was removed leaves nothing.

    Args:
        status: returns the service's status.
        host: returns what it takes of its machine.
    """

    def __init__(self, status: Callable[[], ServiceStatus], host: Callable[[], HostFacts]) -> None:
        self._status, self._host = status, host

    def text(self) -> bytes:
        """Returns the text of all metrics."""
        return generate_latest(self)

    def collect(self) -> Iterator[_Family]:
        """Yields the metrics with their samples; called by ``prometheus_client``."""
        facts = Facts(self._status(), self._host())
        for metric in METRICS:
            yield _family(metric, facts)


def _family(metric: Metric, facts: Facts) -> _Family:
    family = _FAMILIES[metric.kind](metric.name, metric.help, labels=metric.labels)
    for labels, value in metric.read(facts):
        match family, value:
            case HistogramMetricFamily(), StepTimes():
                bounds = [*(str(bound) for bound in STEP_BOUNDS_S), "+Inf"]
                buckets = list(zip(bounds, accumulate(value.counts), strict=True))
                family.add_metric(labels, buckets, value.sum_s)
            case ((CounterMetricFamily() | GaugeMetricFamily()), (int() | float())):
                family.add_metric(labels, value)
            case _:
                raise TypeError(f"{metric.name}: {value!r} is no sample of a {metric.kind}")
    return family
