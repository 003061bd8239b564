"""Commands on the folder of a run or a service: what it holds, what goes, backups, monitoring."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from ekya.cli import options as opt
from ekya.cli.command import Output, command, require_writable
from ekya.core.errors import UserError
from ekya.results.report.formatting import make_table

if TYPE_CHECKING:
    from ekya.config.fleet_sections import RetentionConfig
    from ekya.results.storage.run_folder import RunFolder
    from ekya.service.folder_status import FolderStatus
    from ekya.service.retention import Collected


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
    for line in _status_lines(now):
        output.print_text(line)
    output.console.print(_cameras_table(now))


def _status_lines(now: "FolderStatus") -> list[str]:
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
    lines += [f"{one.id} was given up: {one.set_aside}." for one in now.cameras if one.set_aside]
    lines.append(f"{now.path}: {now.folder_bytes / 1e9:.2f} GB, {now.free_bytes / 1e9:.0f} GB free.")
    if now.pictures_bytes:
        sizes = ", ".join(f"{camera} {size / 1e6:.1f} MB" for camera, size in now.pictures_bytes.items())
        lines.append(f"Stored pictures: {sizes}. `ekya ctl forget CAMERA` deletes a camera's.")
    return lines


def _cameras_table(now: "FolderStatus") -> Table:
    table = make_table("camera", "version", "accuracy", "serves since", "models", "", title="Cameras", left=6)
    for camera in now.cameras:
        table.add_row(
            Text(camera.id),
            str(camera.version),
            "" if camera.accuracy is None else f"{camera.accuracy:.1%}",
            f"{camera.served_from_us / 1e6:.0f} s",
            str(camera.models),
            "removed" if camera.removed else "given up" if camera.set_aside else "",
        )
    return table


@dataclass(frozen=True, kw_only=True)
class MonitoringConfig:
    """Options of ``ekya monitoring``."""

    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for the files; made if missing.")]
    target: Annotated[
        str,
        typer.Option(
            metavar="[https://]HOST:PORT",
            help="Address of the service, as Prometheus reaches it; https:// if it has a certificate.",
        ),
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
    "ekya monitoring --out monitoring --target https://edge-7:8470",
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


@dataclass(frozen=True, kw_only=True)
class GcConfig:
    """Options of ``ekya gc``."""

    run: opt.RunArgument
    runs: opt.Runs = Path("runs")
    days: Annotated[
        float | None, typer.Option(min=0.0, help="Keep what is younger; default: the fleet's.")
    ] = None
    gigabytes: Annotated[
        float | None, typer.Option(min=0.0, help="Room for the folder; default: the fleet's.")
    ] = None
    models: Annotated[
        int | None, typer.Option(min=2, help="Newest models of a stream that stay; default: the fleet's.")
    ] = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, and leave it.")] = (
        False
    )
    json_to: opt.Json = None


@command(GcConfig, "ekya gc runs/monday", "ekya gc runs/monday --models 2 --dry-run", "ekya gc yard --days 1")
def gc(config: GcConfig, output: Output) -> None:
    """Remove earlier weights of a run, and old answers, journal and logs of a service, by its `retention`.

    What serves and what a report or a restart needs stay. A service does this itself. Of a camera that was
    removed from a service nothing is needed, so its pictures go as well when they are old.
    """
    from ekya.service.retention import remove_surplus
    from ekya.service.run_folder_contents import service_cameras
    from ekya.system.files import holder_of

    folder = opt.open_run_folder(config.run, config.runs)
    limits = _retention_limits(config, folder)
    running = holder_of(folder.path) is not None
    collected = remove_surplus(
        folder, limits, streams=service_cameras(folder), with_models=not running, only_look=config.dry_run
    )
    output.write_json(_removed_values(collected, folder, config.dry_run))
    output.console.print(_removed_table(collected, config.dry_run))
    if running:
        output.print_text(
            "Weights were left alone: the run is going on, and removes its earlier ones itself."
        )
    if collected.over_bytes:
        output.print_text(
            f"The folder is {collected.over_bytes / 1e9:.2f} GB over its limit; the rest is needed."
        )


def _retention_limits(config: GcConfig, folder: "RunFolder") -> "RetentionConfig":
    """Returns the limits of the folder's fleet file, with those of the command line."""
    from pydantic import ValidationError

    from ekya.config.fleet_sections import RetentionConfig
    from ekya.core.errors import UserError
    from ekya.system.yaml_file import read_mapping

    asked = {"days": config.days, "gigabytes": config.gigabytes, "models": config.models}
    changes = {key: value for key, value in asked.items() if value is not None}
    try:
        section = read_mapping(folder.fleet).get("retention") or {}
        known = RetentionConfig.model_validate(section)
        return RetentionConfig.model_validate({**known.model_dump(), **changes})
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(map(str, problem["loc"]))
        raise UserError(f"retention.{where}: {problem['msg']}; change it in {folder.fleet}") from None


def _removed_values(collected: "Collected", folder: "RunFolder", dry_run: bool) -> dict[str, object]:
    return {
        "dry_run": dry_run,
        "before_bytes": collected.before_bytes,
        "removed_bytes": collected.removed_bytes,
        "over_bytes": collected.over_bytes,
        "removed": [
            {
                "kind": str(piece.kind),
                "paths": [folder.relative_path(path) for path in piece.paths],
                "bytes": piece.size_bytes,
            }
            for piece in collected.pieces
        ],
    }


def _removed_table(collected: "Collected", dry_run: bool) -> Table:
    table = make_table("what", "number", "MB", title="Would be removed" if dry_run else "Removed")
    for kind in dict.fromkeys(piece.kind for piece in collected.pieces):
        sizes = [piece.size_bytes for piece in collected.pieces if piece.kind is kind]
        table.add_row(str(kind), str(len(sizes)), f"{sum(sizes) / 1e6:.1f}")
    table.add_row("together", str(len(collected.pieces)), f"{collected.removed_bytes / 1e6:.1f}")
    return table


@dataclass(frozen=True, kw_only=True)
class BackupConfig:
    """Options of ``ekya backup``."""

    run: opt.RunArgument
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="Backup to write: a name with .tar.zst or .tar.gz.")
    ]
    runs: opt.Runs = Path("runs")
    json_to: opt.Json = None


@command(
    BackupConfig,
    "ekya backup runs/yard --out yard.tar.zst",
    "ekya backup yard --out /mnt/nas/yard-$(date +%F).tar.gz",
)
def backup(config: BackupConfig, output: Output) -> None:
    """Back up a run or a service, also while it runs: fleet file, state, journal, serving models.

    Passwords stay in the environment, and the token of its HTTP server is not in it.
    """
    from ekya.service.backup import write_backup

    require_writable("--out", config.out)
    facts = write_backup(opt.open_run_folder(config.run, config.runs), config.out)
    size = config.out.stat().st_size
    output.write_json({**asdict(facts), "path": str(config.out), "bytes": size})
    output.print_text(f"{config.out}: {facts.name}, {size / 1e6:.1f} MB")


@dataclass(frozen=True, kw_only=True)
class RestoreConfig:
    """Options of ``ekya restore``."""

    file: Annotated[Path, typer.Argument(metavar="FILE", help="Backup, as `ekya backup` writes it.")]
    runs: opt.Runs = Path("runs")
    name: Annotated[str | None, typer.Option(help="Name of the new folder; default: as before.")] = None
    json_to: opt.Json = None


@command(
    RestoreConfig, "ekya restore yard.tar.zst", "ekya restore yard.tar.zst --runs /srv/ekya --name yard-2"
)
def restore(config: RestoreConfig, output: Output) -> None:
    """Restore a run or a service from a backup, whole or not at all; nothing is overwritten."""
    from ekya.config.fleet_reading import load_kept_fleet
    from ekya.service.backup import missing_variables, restore_backup

    folder = restore_backup(config.file, config.runs, config.name)
    unset = missing_variables(folder)
    problem = None
    try:
        load_kept_fleet(folder)
    except UserError as error:  # golden models and videos are files of the machine, not of the run
        problem = str(error)
    output.write_json({"path": str(folder.path), "unset": list(unset), "problem": problem})
    output.print_text(f"Restored to {folder.path}")
    if unset:
        output.print_text(f"Set these environment variables before it is started: {', '.join(unset)}")
    if problem is not None:
        output.print_text(f"Before it is started: {problem}")
