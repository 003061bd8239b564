"""Reference of the metrics that live runs and services publish, and of a service's alerts."""

from collections.abc import Iterable, Iterator
from typing import Any

from page_text import code, table
from ray.util.metrics import Metric

from ekya.service import metrics as service
from ekya.service.monitoring_files import Alert

_HEAD = ("name", "type", "labels", "meaning")


def metrics_of(holder: object) -> list[Metric]:
    """Returns the metrics among an object's attributes, and in mappings among these, sorted by name."""
    return sorted(_found(vars(holder).values()), key=lambda one: one.info["name"])


def page(metrics: list[Metric]) -> str:
    """Returns the metrics as a Markdown table."""
    rows = [
        (
            code(metric.info["name"]),
            type(metric).__name__.lower(),
            ", ".join(map(code, metric.info["tag_keys"])),
            metric.info["description"],
        )
        for metric in metrics
    ]
    return table(_HEAD, rows)


def service_page(metrics: Iterable[service.Metric]) -> str:
    """Returns the metrics of a service as a Markdown table, in their order."""
    return table(
        _HEAD,
        ((code(one.name), str(one.kind), ", ".join(map(code, one.labels)), one.help) for one in metrics),
    )


def alerts_page(alerts: Iterable[Alert]) -> str:
    """Returns the alerts as a Markdown table."""
    rows = (
        (code(one.name), one.severity, code(one.when), f"{one.for_minutes} min", one.remedy) for one in alerts
    )
    return table(("alert", "severity", "when", "for", "what to do"), rows)


def _found(values: Any) -> Iterator[Metric]:
    for value in values:
        if isinstance(value, Metric):
            yield value
        elif isinstance(value, dict):
            yield from _found(value.values())
