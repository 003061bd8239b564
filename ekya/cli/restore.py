"""``ekya restore``: makes a run folder of a backup."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ekya.cli import options as opt
from ekya.cli.command import command
from ekya.cli.output import Output
from ekya.core.errors import UserError


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
    output.report({"path": str(folder.path), "unset": list(unset), "problem": problem})
    output.say(f"Restored to {folder.path}")
    if unset:
        output.say(f"Set these environment variables before it is started: {', '.join(unset)}")
    if problem is not None:
        output.say(f"Before it is started: {problem}")
