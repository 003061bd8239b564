"""``ekya check`` and ``ekya schema``: what is wrong in a fleet file, and what may stand in one."""

from collections import Counter
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ekya.cli import options as opt
from ekya.cli.command import Output, command, require_writable
from ekya.core.errors import UserError
from ekya.models.golden.spec import FILE

if TYPE_CHECKING:
    from ekya.config.fleet_file import FleetConfig

_LOOK_S = 30.0
"""Longest time for the golden model, in which someone waits."""


@dataclass(frozen=True, kw_only=True)
class CheckConfig:
    """Options of ``ekya check``."""

    fleet: Annotated[Path, typer.Argument(metavar="FLEET", help="Fleet file.")]
    look: Annotated[
        bool,
        typer.Option(
            "--look", help="Open the streams, too: say what is odd, and draw what the golden model finds."
        ),
    ] = False
    pictures: opt.LookPictures = opt.LOOK_FOLDER
    json_to: opt.Json = None


@command(
    CheckConfig,
    "ekya check my-cameras.yaml",
    "ekya check --look my-cameras.yaml",
    "ekya check my-cameras.yaml --json -",
)
def check(config: CheckConfig, output: Output) -> None:
    """Name every problem of a fleet file: its keys, their values, and files that are missing.

    Reads a file of labels, but opens no camera and loads no model, unless --look is given: that writes a
    picture of each stream with the boxes of the golden model, or of the label file, in a minute.
    """
    from ekya.config.fleet_reading import check_fleet

    fleet, problems = check_fleet(config.fleet)
    if fleet is not None and fleet.golden.model == FILE:
        from ekya.pipeline.discover_classes import with_classes

        try:
            with_classes(fleet)
        except UserError as error:
            fleet, problems = None, [str(error)]
    if fleet is not None:
        looks = look_at(fleet, config.pictures, output) if config.look else []
        output.write_json({"file": str(config.fleet), "problems": problems, "looks": looks})
        if any(look["refused"] for look in looks):
            raise UserError("a run refuses labels that are not of their video; correct what is named above")
        odd = sum(len(look["problems"]) for look in looks)
        found = f"{odd} to look into, named above" if odd else "no problem found"
        output.print_text(f"{config.fleet}: {_told(fleet)}; {found}")
        return
    output.write_json({"file": str(config.fleet), "problems": problems})
    if len(problems) == 1:
        raise UserError(problems[0])
    for problem in problems:
        output.print_text(problem)
    raise UserError(f"{config.fleet}: {len(problems)} problems; correct them")


def look_at(fleet: "FleetConfig", folder: Path, output: Output) -> list[dict[str, Any]]:
    """Looks at the first pictures of a fleet, draws one of each stream, and prints what is seen.

    Returns:
        The same as JSON values; ``problems`` are sentences, and a run refuses what is ``refused``.

    Raises:
        UserError: a source or a model cannot be opened, or the folder not be written to.
    """
    from ekya.api.runnable import require_credentials
    from ekya.pipeline.discover_classes import fleet_classes, with_classes
    from ekya.pipeline.first_look import look_at_fleet
    from ekya.results.boxed_picture import BoxStyle, DrawnBox, draw_boxes
    from ekya.system.files import user_errors, write_bytes_atomic

    require_credentials(fleet)
    with user_errors(folder), output.console.status("looking at the first pictures"):
        folder.mkdir(parents=True, exist_ok=True)
        fleet = with_classes(fleet)
        looks = look_at_fleet(fleet, fleet.streams, _LOOK_S)
    said = []
    for stream, look in zip(fleet.streams, looks, strict=True):
        names = [fleet_classes(fleet)[one] for one in look.objects.classes.tolist()]
        picture = folder / f"{stream.id}.jpg"
        if look.shown is not None:
            boxes = [DrawnBox(one, BoxStyle.DOUBTFUL) for one in look.objects.doubtful]
            boxes += map(DrawnBox, look.objects.boxes, repeat(BoxStyle.OBJECT), names)
            write_bytes_atomic(picture, draw_boxes(look.shown.image, boxes, stream.areas))
            seen = ", ".join(f"{count} {name}" for name, count in Counter(names).items()) or "no object"
            size = "{}x{}".format(*look.shown.size)
            output.print_text(f"{stream.id}: {size}, {look.fps:.4g} frames a second, {seen}: {picture}")
        for sentence in look.odd:
            output.print_text(sentence)
        facts = {"stream": stream.id, "fps": look.fps, "objects": Counter(names)}
        drawn = None if look.shown is None else str(picture)
        said.append({**facts, "picture": drawn, "problems": look.odd, "refused": look.refused})
    return said


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
