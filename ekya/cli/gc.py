"""``ekya gc``: removes what a run or a service holds beyond its limits."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from ekya.cli import options as opt
from ekya.cli.command import command
from ekya.cli.output import Output

if TYPE_CHECKING:
    from ekya.config.fleet_sections import RetentionConfig
    from ekya.core.units import StreamId
    from ekya.results.storage.run_folder import RunFolder
    from ekya.service.retention import Collected


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

    What serves, what a report or a restart needs and kept models stay. A service does this itself. Of a
    camera that was removed from a service nothing is needed, so its pictures go as well when they are old.
    """
    from ekya.service.retention import remove_surplus
    from ekya.system.files import holder_of

    folder = opt.open_run_folder(config.run, config.runs)
    limits = _limits(config, folder)
    running = holder_of(folder.path) is not None
    collected = remove_surplus(
        folder, limits, streams=_cameras(folder), with_models=not running, only_look=config.dry_run
    )
    output.write_json(_values(collected, folder, config.dry_run))
    output.console.print(_table(collected, config.dry_run))
    if running:
        output.print_text(
            "Weights were left alone: the run is going on, and removes its earlier ones itself."
        )
    if collected.over_bytes:
        output.print_text(
            f"The folder is {collected.over_bytes / 1e9:.2f} GB over its limit; the rest is needed."
        )


def _limits(config: GcConfig, folder: "RunFolder") -> "RetentionConfig":
    """Returns the limits of the folder's fleet file, with those of the command line."""
    from pydantic import ValidationError

    from ekya.config.files import read_mapping
    from ekya.config.fleet_sections import RetentionConfig
    from ekya.core.errors import UserError

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


def _cameras(folder: "RunFolder") -> "tuple[StreamId, ...] | None":
    """Returns the cameras of a service; None where nothing may be taken for gone.

    That is so of a run, whose report needs all, and where the fleet file was edited into something else.
    """
    from ekya.config.files import read_mapping
    from ekya.core.units import StreamId
    from ekya.service.run_folder_contents import is_service

    streams = read_mapping(folder.fleet).get("streams")
    if not is_service(folder) or not isinstance(streams, list):
        return None
    ids = [StreamId(one["id"]) for one in streams if isinstance(one, dict) and isinstance(one.get("id"), str)]
    return tuple(ids) if len(ids) == len(streams) else None


def _values(collected: "Collected", folder: "RunFolder", dry_run: bool) -> dict[str, object]:
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


def _table(collected: "Collected", dry_run: bool) -> Table:
    title = "Would be removed" if dry_run else "Removed"
    table = Table(title=title, title_justify="left")
    for heading in ("what", "number", "MB"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for kind in dict.fromkeys(piece.kind for piece in collected.pieces):
        sizes = [piece.size_bytes for piece in collected.pieces if piece.kind is kind]
        table.add_row(str(kind), str(len(sizes)), f"{sum(sizes) / 1e6:.1f}")
    table.add_row("together", str(len(collected.pieces)), f"{collected.removed_bytes / 1e6:.1f}")
    return table
