"""Grafana dashboard of a service: panels as data, and the JSON that Grafana imports."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ekya.results.metrics.health import HealthState

_COLUMNS = 24
"""Width of Grafana's grid."""

_SOURCE = {"type": "prometheus", "uid": "${source}"}
_OF = 'instance=~"$instance"'
_STREAM = f'{_OF}, stream=~"$stream"'
_COLOURS = {
    HealthState.OK: "green",
    HealthState.STALE: "yellow",
    HealthState.UNLABELLED: "blue",
    HealthState.BEHIND: "orange",
    HealthState.LOST: "red",
}


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL expression, and how its series are named."""

    expression: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel.

    Attributes:
        kind: Grafana's type.
        title, help: what it shows.
        queries: what it draws.
        unit: Grafana's name of it.
        width, height: in units of Grafana's grid.
        limits: ``min`` and ``max`` of the axis, where they are fixed.
        drawing: Grafana's settings of the lines.
        mappings: texts and colours for values.
        colours: of a number, each with the least value that has it; None for all below the next.
    """

    kind: str
    title: str
    help: str
    queries: Sequence[Query]
    unit: str = "short"
    width: int = 12
    height: int = 8
    limits: Mapping[str, float] = field(default_factory=dict)
    drawing: Mapping[str, Any] = field(default_factory=dict)
    mappings: Sequence[Mapping[str, Any]] = ()
    colours: Sequence[tuple[float | None, str]] = ((None, "green"),)


_RATIO = {"min": 0.0, "max": 1.0}
_POSITIVE = {"min": 0.0}
_STACKED = {"fillOpacity": 30, "stacking": {"mode": "normal"}}


def _stat(
    title: str,
    text: str,
    expression: str,
    unit: str = "short",
    colours: Sequence[tuple[float | None, str]] = ((None, "text"),),
) -> Panel:
    """Returns a panel of one number."""
    return Panel("stat", title, text, [Query(expression)], unit, width=4, height=4, colours=colours)


def _health() -> Panel:
    """Returns the panel of health: each state is a number, which is drawn as its name and colour."""
    states = list(HealthState)
    numbered = " or ".join(
        f'ekya_stream_health{{{_STREAM}, state="{state}"}} * {number}' for number, state in enumerate(states)
    )
    options = {
        str(number): {"text": str(state), "color": _COLOURS[state], "index": number}
        for number, state in enumerate(states)
    }
    return Panel(
        "state-timeline",
        "Health",
        "ok, or what a stream lacks. The service's page has reason and remedy.",
        [Query(f"max by (instance, stream) ({numbered})", "{{stream}}")],
        drawing={"fillOpacity": 80},
        mappings=[{"type": "value", "options": options}],
    )


PANELS = (
    _stat(
        "Streams that are ok",
        "Part of the streams whose health is ok.",
        f'avg(ekya_stream_health{{{_STREAM}, state="ok"}})',
        "percentunit",
        [(None, "red"), (0.5, "orange"), (1.0, "green")],
    ),
    _stat(
        "Mean accuracy",
        "Estimated accuracy of what answers, over all streams.",
        f"avg(ekya_stream_accuracy_ratio{{{_STREAM}}})",
        "percentunit",
    ),
    _stat(
        "Frames analysed",
        "Part of the frames that were to be analysed, and were.",
        f"sum(rate(ekya_stream_frames_analysed_total{{{_STREAM}}}[$__rate_interval]))"
        f" / sum(rate(ekya_stream_frames_due_total{{{_STREAM}}}[$__rate_interval]))",
        "percentunit",
    ),
    _stat(
        "Running for",
        "Time since the service was started last.",
        f"time() - max(ekya_service_start_timestamp_seconds{{{_OF}}})",
        "s",
    ),
    _stat(
        "Restarts in a day",
        "Restarts after the service had died.",
        f"sum(increase(ekya_service_restarts_total{{{_OF}}}[1d]))",
        colours=[(None, "green"), (0.5, "orange"), (3.0, "red")],
    ),
    _stat(
        "Disk free",
        "Part of the disk of the service's folder.",
        f"min(ekya_service_disk_free_bytes{{{_OF}}} / ekya_service_disk_size_bytes{{{_OF}}})",
        "percentunit",
        [(None, "red"), (0.1, "green")],
    ),
    Panel(
        "timeseries",
        "Accuracy",
        "Estimated accuracy of what answers: the model that serves, or the golden detector. Audited: of the "
        "answers themselves, on frames that nothing learnt from, with the bounds of the 95% interval.",
        [
            Query(f"ekya_stream_accuracy_ratio{{{_STREAM}}}", "{{stream}}"),
            Query(f"ekya_stream_audited_accuracy_ratio{{{_STREAM}}}", "{{stream}}, audited"),
            Query(f"ekya_stream_audited_accuracy_low_ratio{{{_STREAM}}}", "{{stream}}, at least"),
            Query(f"ekya_stream_audited_accuracy_high_ratio{{{_STREAM}}}", "{{stream}}, at most"),
        ],
        "percentunit",
        limits=_RATIO,
    ),
    _health(),
    Panel(
        "timeseries",
        "Shares of inference",
        "Granted shares of a GPU; one core stands for one where there is none.",
        [Query(f"ekya_stream_inference_share_ratio{{{_STREAM}}}", "{{stream}}")],
        limits=_POSITIVE,
        drawing=_STACKED,
    ),
    Panel(
        "timeseries",
        "Shares of retraining",
        "Granted shares of a GPU.",
        [Query(f"ekya_stream_retraining_share_ratio{{{_STREAM}}}", "{{stream}}")],
        limits=_POSITIVE,
        drawing=_STACKED,
    ),
    Panel(
        "timeseries",
        "Retrainings and drifts in an hour",
        "Retrainings by outcome, and changes of a scene that were noticed.",
        [
            Query(
                f"sum by (outcome) (increase(ekya_stream_retrainings_total{{{_STREAM}}}[1h]))", "{{outcome}}"
            ),
            Query(f"sum(increase(ekya_stream_drifts_total{{{_STREAM}}}[1h]))", "drifts"),
        ],
        limits=_POSITIVE,
    ),
    Panel(
        "timeseries",
        "Age of labels",
        "Time since the golden model has labelled a stream.",
        [Query(f"time() - ekya_stream_last_labels_timestamp_seconds{{{_STREAM}}}", "{{stream}}")],
        "s",
        limits=_POSITIVE,
    ),
    Panel(
        "timeseries",
        "Frames that were not analysed",
        "Frames a second that were to be analysed and were dropped.",
        [
            Query(
                f"rate(ekya_stream_frames_due_total{{{_STREAM}}}[$__rate_interval])"
                f" - rate(ekya_stream_frames_analysed_total{{{_STREAM}}}[$__rate_interval])",
                "{{stream}}",
            )
        ],
        limits=_POSITIVE,
    ),
    Panel(
        "timeseries",
        "Answers that wait",
        "Frames whose answers a sink has not confirmed yet.",
        [Query(f"ekya_answers_waiting{{{_OF}}}", "{{sink}}")],
        limits=_POSITIVE,
    ),
    Panel(
        "timeseries",
        "Steps of the control loop",
        "Duration that 99% of the steps keep.",
        [
            Query(
                "histogram_quantile(0.99, sum by (le, instance) "
                f"(rate(ekya_loop_step_seconds_bucket{{{_OF}}}[$__rate_interval])))",
                "{{instance}}",
            )
        ],
        "s",
        limits=_POSITIVE,
    ),
    Panel(
        "timeseries",
        "Warnings in an hour",
        "Warnings of the service's processes; logs/service.jsonl has them.",
        [Query(f"sum by (source) (increase(ekya_warnings_total{{{_OF}}}[1h])) > 0", "{{source}}")],
        limits=_POSITIVE,
    ),
    Panel(
        "timeseries",
        "Memory",
        "Memory that the service's processes hold for themselves alone.",
        [Query(f"ekya_service_memory_bytes{{{_OF}}}", "{{instance}}")],
        "bytes",
        limits=_POSITIVE,
    ),
    Panel(
        "timeseries",
        "Folder",
        "Size of the service's folder.",
        [Query(f"ekya_service_folder_bytes{{{_OF}}}", "{{instance}}")],
        "bytes",
        limits=_POSITIVE,
    ),
)
"""Panels in the order of the page, from left to right and down."""


def dashboard_text() -> str:
    """Returns the dashboard as JSON for Grafana 10 or later."""
    dashboard = {
        "uid": "ekya",
        "title": "Ekya",
        "tags": ["ekya"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": list(_variables())},
        "panels": list(_placed(PANELS)),
    }
    return json.dumps(dashboard, indent=2) + "\n"


def _variables() -> Iterable[dict[str, Any]]:
    """Yields what is chosen at the page's top: the data source, services and streams."""
    yield {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    for name, label, query in (
        ("instance", "Service", "label_values(ekya_service_start_timestamp_seconds, instance)"),
        ("stream", "Stream", f"label_values(ekya_stream_health{{{_OF}}}, stream)"),
    ):
        yield {
            "name": name,
            "label": label,
            "type": "query",
            "datasource": _SOURCE,
            "query": {"query": query, "refId": name},
            "definition": query,
            "refresh": 2,  # whenever the time range changes, so that a new camera is found
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        }


def _placed(panels: Iterable[Panel]) -> Iterable[dict[str, Any]]:
    """Yields panels as Grafana's JSON, in rows that are filled from left to right."""
    x = y = 0
    for number, panel in enumerate(panels, 1):
        if x + panel.width > _COLUMNS:
            raise ValueError(f"the panel {panel.title!r} does not fit into its row")
        yield _panel(number, panel, x, y)
        x += panel.width
        if x == _COLUMNS:
            x, y = 0, y + panel.height


def _panel(number: int, panel: Panel, x: int, y: int) -> dict[str, Any]:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.help,
        "datasource": _SOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "datasource": _SOURCE,
                "expr": query.expression,
                "legendFormat": query.legend or "__auto",
            }
            for at, query in enumerate(panel.queries)
        ],
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                **panel.limits,
                "custom": dict(panel.drawing),
                "mappings": list(panel.mappings),
                "thresholds": {
                    "mode": "absolute",
                    "steps": [{"value": value, "color": colour} for value, colour in panel.colours],
                },
            },
            "overrides": [],
        },
        "options": {"tooltip": {"mode": "multi", "sort": "desc"}} if panel.kind == "timeseries" else {},
    }
