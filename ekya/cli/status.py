"""``ekya status`` and ``ekya monitoring``: what a run's folder says, and files to watch a service with."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from ekya.cli import options as opt
from ekya.cli.command import command
from ekya.cli.output import Output

if TYPE_CHECKING:
    from ekya.service.folder_status import FolderStatus


@dataclass(frozen=True, kw_only=True)
class StatusConfig:
    """Options of ``ekya status``."""

    run: opt.RunArgument
    runs: opt.Runs = Path("runs")
    json_to: opt.Json = None


@command(StatusConfig, "ekya status runs/monday", "ekya status yard --json -")
def status(config: StatusConfig, output: Output) -> None:
    """Say of a run or a service whether it runs, its window, its cameras' models, and its room on disk.

    It reads the folder alone; `ekya ctl status` asks the running service.
    """
    from ekya.service.folder_status import folder_status

    now = folder_status(opt.open_run_folder(config.run, config.runs))
    output.write_json(asdict(now))
    for line in _lines(now):
        output.print_text(line)
    output.console.print(_table(now))


def _lines(now: "FolderStatus") -> list[str]:
    what = "service" if now.service else "run"
    if now.pid is not None:
        state = f"runs (process {now.pid})"
    else:
        state = "has ended" if now.ended else "does not run"
    lines = [f"The {what} {now.name} {state}."]
    if now.window is not None:
        lines.append(f"Last window: {now.window}, opened after {(now.window_opened_us or 0) / 1e6:.0f} s.")
    if now.restarts.count:
        lines.append(f"Restarts: {now.restarts.count}, the last since it {now.restarts.last_reason}.")
    lines.append(f"{now.path}: {now.folder_bytes / 1e9:.2f} GB, {now.free_bytes / 1e9:.0f} GB free.")
    if now.pictures_bytes:
        sizes = ", ".join(f"{camera} {size / 1e6:.1f} MB" for camera, size in now.pictures_bytes.items())
        lines.append(f"Stored pictures: {sizes}. `ekya ctl forget CAMERA` deletes a camera's.")
    return lines


def _table(now: "FolderStatus") -> Table:
    table = Table(title="Cameras", title_justify="left")
    for heading in ("camera", "version", "accuracy", "serves since", "models", "given up"):
        table.add_column(heading)
    for camera in now.cameras:
        table.add_row(
            camera.id,
            str(camera.version),
            "" if camera.accuracy is None else f"{camera.accuracy:.1%}",
            f"{camera.served_from_us / 1e6:.0f} s",
            str(camera.models),
            camera.set_aside or "",
        )
    return table


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
        output.print_text(f"{config.out / name} written")
