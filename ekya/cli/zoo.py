"""``ekya zoo``: lists the retrained models that a folder keeps."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from ekya.cli import options as opt
from ekya.cli.command import Output, command
from ekya.core.errors import UserError
from ekya.core.units import us_to_seconds

if TYPE_CHECKING:
    from ekya.pipeline.zoo_folder import KeptFile


@dataclass(frozen=True, kw_only=True)
class ZooListConfig:
    """Options of ``ekya zoo``."""

    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="`zoo.folder` of a fleet, or runs/NAME/zoo.")
    ]
    json_to: opt.Json = None


@command(ZooListConfig, "ekya zoo my-zoo", "ekya zoo runs/synthetic-city/zoo --json -")
def zoo(config: ZooListConfig, output: Output) -> None:
    """List the retrained models that a folder keeps, the last used first, and say whose files are damaged."""
    from ekya.pipeline.zoo_folder import checked, read_index, weights_of

    index = read_index(config.folder)
    if index is None:
        raise UserError(
            f"{config.folder}: there is no zoo of models; name a folder that a run has kept some in"
        )

    def is_whole(file: "KeptFile") -> bool:
        try:
            return bool(checked(weights_of(config.folder, file.model.number), file.sha256))
        except UserError:
            return False

    files = [(file, is_whole(file)) for file in reversed(index.files)]
    output.write_json(
        {
            **asdict(index.kind),
            "models": [{**asdict(file.model), "bytes": file.size, "whole": whole} for file, whole in files],
        }
    )
    output.console.print(_table(f"{index.kind.architecture} in {config.folder}", files, index.kind.classes))


def _table(title: str, files: "Sequence[tuple[KeptFile, bool]]", classes: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in ("number", "retrained for", "version", "at", "accuracy", "most labels", "MB", "file"):
        table.add_column(heading)
    for file, whole in files:
        model, seen = file.model, file.model.scene.histogram
        most = sorted(range(len(seen)), key=lambda at: -seen[at])[:3]
        table.add_row(
            str(model.number),
            model.stream,
            str(model.version),
            f"{us_to_seconds(model.t_us):.1f} s",
            f"{model.accuracy:.1%}",
            ", ".join(classes[at] for at in most if seen[at]),
            f"{file.size / 1e6:.1f}",
            "whole" if whole else "damaged",
        )
    return table
