"""``ekya schema``: the JSON Schema of the fleet file, for editors."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ekya.cli.command import command
from ekya.cli.output import Output, require_writable


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
    from ekya.config.fleet_reading import NAMES_SCHEMA, fleet_schema
    from ekya.system.files import write_text_atomic

    text = fleet_schema()
    if config.out is None:
        output.say(text.rstrip())
        return
    require_writable("--out", config.out)
    write_text_atomic(config.out, text)
    output.say(f"{config.out} written; name it in the first line of a fleet file:")
    output.say(f"{NAMES_SCHEMA}{config.out}")
