"""Files with which Prometheus and Grafana watch a service; its alert rules, declared once."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ekya.service.grafana import dashboard_text

JOB = "ekya"
"""Name of the job under which Prometheus scrapes a service; those of further ones begin with it."""

LABELLED_WITHIN_WINDOWS = 10
"""A stream that serves and gets no labels for this many windows is reported."""


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule.

    Attributes:
        name: of the alert.
        when: PromQL expression that has a sample for each thing that is wrong.
        for_minutes: how long it must hold.
        severity: ``critical`` needs a person at once, ``warning`` within a day.
        summary: what is wrong, for the page; names labels by Prometheus's templates.
        remedy: what to do.
    """

    name: str
    when: str
    for_minutes: int
    severity: str
    summary: str
    remedy: str


ALERTS = (
    Alert(
        name="EkyaServiceDown",
        when=f'up{{job=~"{JOB}.*"}} == 0',
        for_minutes=2,
        severity="critical",
        summary="Ekya on {{ $labels.instance }} gives no metrics",
        remedy="See whether it runs (ekya status), and the end of logs/service.jsonl in its folder.",
    ),
    Alert(
        name="EkyaServiceRestarts",
        when="increase(ekya_service_restarts_total[1h]) > 2",
        for_minutes=0,
        severity="critical",
        summary="Ekya on {{ $labels.instance }} was restarted {{ $value | humanize }} times in an hour",
        remedy="The end of logs/service.jsonl before each start says why; often memory is short.",
    ),
    Alert(
        name="EkyaStreamUnhealthy",
        when='ekya_stream_health{state="ok"} == 0',
        for_minutes=5,
        severity="warning",
        summary="Stream {{ $labels.stream }} on {{ $labels.instance }} does not get what it needs",
        remedy="Its tile on the service's page gives the reason and a remedy.",
    ),
    Alert(
        name="EkyaStreamWithoutLabels",
        when=(
            "(time() - ekya_stream_last_labels_timestamp_seconds) > on (job, instance) group_left () "
            f"({LABELLED_WITHIN_WINDOWS} * ekya_service_window_seconds)"
            ' and on (job, instance, stream) ekya_stream_state{state="serving"} == 1'
            " unless on (job, instance, stream) ekya_stream_frozen == 1"
        ),
        for_minutes=15,
        severity="warning",
        summary=(
            "Stream {{ $labels.stream }} on {{ $labels.instance }} had its last labels "
            "{{ $value | humanizeDuration }} ago"
        ),
        remedy="Ask for labels (ekya ctl labels), and see the warnings of the golden model.",
    ),
    Alert(
        name="EkyaDiskNearlyFull",
        when="ekya_service_disk_free_bytes / ekya_service_disk_size_bytes < 0.1",
        for_minutes=10,
        severity="warning",
        summary="The disk of Ekya on {{ $labels.instance }} has {{ $value | humanizePercentage }} left",
        remedy="Lower retention.gigabytes or retention.days, or give it a larger disk.",
    ),
    Alert(
        name="EkyaAnswersNotDelivered",
        when="ekya_answers_waiting_seconds > 300",
        for_minutes=5,
        severity="warning",
        summary=(
            "Answers for {{ $labels.sink }} on {{ $labels.instance }} have waited for "
            "{{ $value | humanizeDuration }}"
        ),
        remedy="See whether its broker or address can be reached; nothing is lost within the retention.",
    ),
    Alert(
        name="EkyaAnswersLost",
        when="increase(ekya_answers_lost_total[1h]) > 0",
        for_minutes=0,
        severity="critical",
        summary="Answers for {{ $labels.sink }} on {{ $labels.instance }} were removed before they arrived",
        remedy="Bring its broker or address back, or raise retention.days and retention.gigabytes.",
    ),
)


def rules_text() -> str:
    """Returns the rules file."""
    rules = [_rule(alert) for alert in ALERTS]
    return yaml.safe_dump({"groups": [{"name": "ekya", "rules": rules}]}, sort_keys=False, width=110)


def _rule(alert: Alert) -> dict[str, Any]:
    held = {"for": f"{alert.for_minutes}m"} if alert.for_minutes else {}
    return {
        "alert": alert.name,
        "expr": alert.when,
        **held,
        "labels": {"severity": alert.severity},
        "annotations": {"summary": alert.summary, "description": alert.remedy},
    }


DASHBOARD, RULES, PROMETHEUS = "ekya-dashboard.json", "ekya-rules.yml", "prometheus.yml"

_BEGIN = """\
# Start Prometheus with --config.file=prometheus.yml, or take over rule_files and scrape_configs.
# Each further service is a job with a name that begins with ekya, and its own token.
"""


def monitoring_files(target: str, token: Path) -> Mapping[str, str]:
    """Returns the text of each file by its name.

    Args:
        target: address and port of the service, as Prometheus reaches it, behind ``https://`` if it has a
            certificate.
        token: file with the service's token, as Prometheus reads it.
    """
    return {
        DASHBOARD: dashboard_text(),
        RULES: rules_text(),
        PROMETHEUS: _prometheus_text(target, token),
    }


def _prometheus_text(target: str, token: Path) -> str:
    scheme, _, host = target.rpartition("://")
    job = {
        "job_name": JOB,
        **({"scheme": scheme} if scheme else {}),
        "authorization": {"type": "Bearer", "credentials_file": str(token)},
        "static_configs": [{"targets": [host]}],
    }
    every = {"scrape_interval": "15s", "evaluation_interval": "15s"}
    config = {"global": every, "rule_files": [RULES], "scrape_configs": [job]}
    return _BEGIN + yaml.safe_dump(config, sort_keys=False)
