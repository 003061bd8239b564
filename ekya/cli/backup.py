"""``ekya backup`` and ``ekya restore``: one file with what a run or a service needs to go on elsewhere."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from ekya.cli import options as opt
from ekya.cli.command import command
from ekya.cli.output import Output, require_writable
from ekya.core.errors import UserError


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
    """Back up a run or a service, also while it runs: fleet file, state, journal, serving models, zoo.

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
