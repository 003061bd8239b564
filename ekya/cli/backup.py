"""``ekya backup``: writes what a run or a service needs to go on elsewhere to one file."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from ekya.cli import options as opt
from ekya.cli.command import command
from ekya.cli.output import Output, require_writable
from ekya.cli.run_argument import RunArgument, run_folder_of


@dataclass(frozen=True, kw_only=True)
class BackupConfig:
    """Options of ``ekya backup``."""

    run: RunArgument
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
    facts = write_backup(run_folder_of(config.run, config.runs), config.out)
    size = config.out.stat().st_size
    output.report({**asdict(facts), "path": str(config.out), "bytes": size})
    output.say(f"{config.out}: {facts.name}, {size / 1e6:.1f} MB")
