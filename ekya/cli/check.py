"""``ekya check`` and ``ekya schema``: what is wrong in a fleet file, and what may stand in one."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ekya.cli import options as opt
from ekya.cli.command import Output, command, require_writable
from ekya.core.errors import UserError

if TYPE_CHECKING:
    from ekya.config.fleet_file import FleetConfig


@dataclass(frozen=True, kw_only=True)
class CheckConfig:
    """Options of ``ekya check``."""

    fleet: Annotated[Path, typer.Argument(metavar="FLEET", help="Fleet file.")]
    json_to: opt.Json = None


@command(CheckConfig, "ekya check my-cameras.yaml", "ekya check my-cameras.yaml --json -")
def check(config: CheckConfig, output: Output) -> None:
    """Name every problem of a fleet file: its keys, their values, and files that are missing.

    Opens no camera and loads no model; `ekya run` does that.
    """
    from ekya.config.fleet_reading import check_fleet

    fleet, problems = check_fleet(config.fleet)
    output.write_json({"file": str(config.fleet), "problems": problems})
    if fleet is not None:
        output.print_text(f"{config.fleet}: {_told(fleet)}; no problem found")
        return
    if len(problems) == 1:
        raise UserError(problems[0])
    for problem in problems:
        output.print_text(problem)
    raise UserError(f"{config.fleet}: {len(problems)} problems; correct them")


def _told(fleet: "FleetConfig") -> str:
    streams = f"{len(fleet.streams)} stream{'s' if len(fleet.streams) > 1 else ''}"
    window = (
        f"windows of {fleet.window_s:g} s" if fleet.is_set("window_s") else "windows that fit the machine"
    )
    return f"{streams}, {window}"


@dataclass(frozen=True, kw_only=True)
class SchemaConfig:
    """Options of ``ekya schema``."""

    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File to write; standard output otherwise.")
    ] = None


@command(SchemaConfig, "ekya schema", "ekya schema --out fleet.schema.json")
def schema(config: SchemaConfig, output: Output) -> None:
    """Print the JSON Schema of the fleet file, with which an editor completes, explains and checks keys.

    Many editors find it by the first line of a file: `# yaml-language-server: $schema=fleet.schema.json`.
    """
    from ekya.config.fleet_reading import NAMES_SCHEMA, dump_schema
    from ekya.system.files import is_written_into, write_text_atomic

    text = dump_schema()
    if config.out is None:
        output.print_text(text.rstrip())
        return
    require_writable("--out", config.out)
    write_text_atomic(config.out, text)
    if is_written_into(config.out):
        return
    output.print_text(f"{config.out} written; name it in the first line of a fleet file:")
    output.print_text(f"{NAMES_SCHEMA}{config.out}")
