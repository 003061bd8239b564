"""``ekya monitoring``: files with which Prometheus and Grafana watch a service."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ekya.cli.command import command
from ekya.cli.output import Output


@dataclass(frozen=True, kw_only=True)
class MonitoringConfig:
    """Options of ``ekya monitoring``."""

    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for the files; made if missing.")]
    target: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address of the service, as Prometheus reaches it.")
    ] = "127.0.0.1:8470"
    token: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="File with the service's token, as Prometheus reads it: runs/NAME/token."
        ),
    ] = Path("token")


@command(
    MonitoringConfig,
    "ekya monitoring --out monitoring --token /srv/ekya/runs/yard/token",
    "ekya monitoring --out monitoring --target edge-7:8470",
)
def monitoring(config: MonitoringConfig, output: Output) -> None:
    """Write a Grafana dashboard, alert rules for Prometheus, and an example of Prometheus's configuration."""
    from ekya.service.monitoring_files import monitoring_files
    from ekya.system.files import user_errors, write_text_atomic

    with user_errors(config.out):
        config.out.mkdir(parents=True, exist_ok=True)
    for name, text in monitoring_files(config.target, config.token).items():
        write_text_atomic(config.out / name, text)
        output.say(f"{config.out / name} written")
