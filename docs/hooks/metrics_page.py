"""Reference page of the metrics that a live run publishes."""

from collections.abc import Iterator
from typing import Any

from page_text import code, table
from ray.util.metrics import Metric


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
    return table(("name", "type", "labels", "meaning"), rows)


def _found(values: Any) -> Iterator[Metric]:
    for value in values:
        if isinstance(value, Metric):
            yield value
        elif isinstance(value, dict):
            yield from _found(value.values())
