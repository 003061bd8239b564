"""Files with which Prometheus and Grafana watch a service."""

from collections.abc import Mapping
from pathlib import Path

import yaml

from ekya.service.alerts import JOB, rules_text
from ekya.service.grafana import dashboard_text

DASHBOARD, RULES, PROMETHEUS = "ekya-dashboard.json", "ekya-rules.yml", "prometheus.yml"

_BEGIN = """\
# Start Prometheus with --config.file=prometheus.yml, or take over rule_files and scrape_configs.
# Each further service is a job with a name that begins with ekya, and its own token.
"""


def monitoring_files(target: str, token: Path) -> Mapping[str, str]:
    """Returns the text of each file by its name.

    Args:
        target: address and port of the service, as Prometheus reaches it.
        token: file with the service's token, as Prometheus reads it.
    """
    return {
        DASHBOARD: dashboard_text(),
        RULES: rules_text(),
        PROMETHEUS: _prometheus_text(target, token),
    }


def _prometheus_text(target: str, token: Path) -> str:
    job = {
        "job_name": JOB,
        "authorization": {"type": "Bearer", "credentials_file": str(token)},
        "static_configs": [{"targets": [target]}],
    }
    every = {"scrape_interval": "15s", "evaluation_interval": "15s"}
    config = {"global": every, "rule_files": [RULES], "scrape_configs": [job]}
    return _BEGIN + yaml.safe_dump(config, sort_keys=False)
