"""``ekya models``: the catalogue of published models, and the user's cache of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from ekya.cli import options as opt
from ekya.cli.command import Output, command, require_writable
from ekya.core.errors import UserError
from ekya.results.report.formatting import make_table

if TYPE_CHECKING:
    from ekya.models.catalogue import PublishedModel


@dataclass(frozen=True, kw_only=True)
class ListConfig:
    """Options of ``ekya models list``."""

    json_to: opt.Json = None


@command(ListConfig, "ekya models", "ekya models list --json - | jq '.models[].licence'")
def list_(config: ListConfig, output: Output) -> None:
    """List the models that Ekya can fetch; those with a star are in the cache.

    With --json their source, checksum and file, too.
    """
    from ekya.models.catalogue import CATALOGUE, models_folder

    output.write_json({"folder": str(models_folder()), "models": [_values(model) for model in CATALOGUE]})
    table = make_table("", "model", "role", "licence", "MB", "AP", "ms", gap=1, left=4)
    for model in CATALOGUE:
        table.add_row(*_row(model))
    table.caption = "AP: average precision on COCO. ms: of a frame on this machine, where it was measured."
    output.console.print(table)
    output.print_text(f"The cache is {models_folder()}")
    output.print_text(
        "ekya models fetch NAME gets one; --golden NAME and --student NAME take it, --weights NAME a start"
    )


def _row(model: "PublishedModel") -> tuple[str, ...]:
    from ekya.pipeline.default_models import known_frame_ms

    precision, frame_ms = model.average_precision, known_frame_ms(model)
    return (
        "*" if model.is_cached else "",
        model.name,
        model.role.removeprefix("golden "),
        model.licence,
        model.size_in_words.removesuffix(" MB"),
        "" if precision is None else f"{precision:.1f}",
        "" if frame_ms is None else f"{frame_ms:.0f}",
    )


def _values(model: "PublishedModel") -> dict[str, Any]:
    from ekya.pipeline.default_models import known_frame_ms

    return {
        "name": model.name,
        "role": model.role,
        "licence": model.licence,
        "source": model.source,
        "url": model.file.url,
        "size_bytes": model.file.size_bytes,
        "sha256": model.file.sha256,
        "git_blob": model.file.git_blob,
        "average_precision": model.average_precision,
        "frame_ms": known_frame_ms(model),
        "path": str(model.cached_path) if model.is_cached else None,
    }


@dataclass(frozen=True, kw_only=True)
class FetchConfig:
    """Options of ``ekya models fetch``."""

    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME...", help="Models of the catalogue; default: those that a run takes."),
    ] = None
    folder: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FOLDER",
            help="Take them from a folder, by content, whatever their names; without NAME all that it holds.",
        ),
    ] = None
    json_to: opt.Json = None


@command(
    FetchConfig,
    "ekya models fetch",
    "ekya models fetch deimv2-pico",
    "ekya models fetch --from /media/stick",
)
def fetch(config: FetchConfig, output: Output) -> None:
    """Get published models into the user's cache, over the network or from a folder.

    A download that was interrupted goes on where it ended. What has another checksum is refused.
    """
    from ekya.models.catalogue import CATALOGUE, DEFAULT_GOLDEN, STUDENT, find_model

    wanted = []
    for name in config.names or ():
        model = find_model(name)
        if model is None:
            known = ", ".join(one.name for one in CATALOGUE)
            raise UserError(f"{name}: no model of the catalogue is called so; use one of {known}")
        wanted.append(model)
    if config.folder is not None:
        paths = _import_from(config.folder, wanted)
    else:
        paths = _download(wanted or [STUDENT, DEFAULT_GOLDEN], output)
    output.write_json({"files": {name: str(path) for name, path in paths.items()}})
    for name, path in paths.items():
        output.print_text(f"{name}: {path}")


def _import_from(folder: Path, wanted: "Sequence[PublishedModel]") -> dict[str, Path]:
    from ekya.models.catalogue import CATALOGUE, find_in_folder, import_model

    if not folder.is_dir():
        raise UserError(f"--from {folder}: there is no such folder; name the one that holds the files")
    held = wanted or [model for model in CATALOGUE if find_in_folder(model, folder) is not None]
    if not held:
        raise UserError(f"--from {folder}: no file there is a model of the catalogue; see ekya models list")
    return {model.name: import_model(model, folder) for model in held}


def _download(wanted: "Sequence[PublishedModel]", output: Output) -> dict[str, Path]:
    from ekya.models.catalogue import fetch_model

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    paths = {}
    with Progress(*columns, console=output.console, disable=not output.console.is_terminal) as bars:
        for model in wanted:
            bar = bars.add_task(model.name, total=model.file.size_bytes)

            def show(done: int, of: int | None, bar: Any = bar) -> None:
                bars.update(bar, completed=done, total=of)

            paths[model.name] = fetch_model(model, progress=show)
    return paths


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """Options of ``ekya models export``."""

    run: opt.RunArgument
    camera: Annotated[str, typer.Argument(metavar="CAMERA", help="Id of one of its streams.")]
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="ONNX file to write; its model card is beside it, as .md.")
    ]
    resolution: Annotated[
        int | None,
        typer.Option(
            min=8,
            max=640,
            metavar="PIXELS",
            help="Side that frames or crops are resized to in the file; default: that of the last window.",
        ),
    ] = None
    runs: opt.Runs = Path("runs")
    json_to: opt.Json = None


@command(
    ExportConfig,
    "ekya models export runs/videos yard --out yard.onnx",
    "ekya models export yard gate --out gate.onnx",
)
def export(config: ExportConfig, output: Output) -> None:
    """Write the weights that serve a camera as an ONNX file that needs nothing of Ekya, with a model card.

    It gives the boxes that the camera got: resizing, decoding, threshold and suppression are in the file.
    """
    from ekya.core.units import StreamId
    from ekya.pipeline.exported_model import export_serving_model

    if config.out.suffix.lower() != ".onnx":
        raise UserError(f"--out {config.out}: models are written as .onnx; name such a file")
    require_writable("--out", config.out)
    folder = opt.open_run_folder(config.run, config.runs)
    facts = export_serving_model(folder, StreamId(config.camera), config.out, config.resolution)
    output.write_json(facts)
    size = config.out.stat().st_size / 1e6
    output.print_text(
        f"{config.out}: version {facts['version']} of {config.camera}, a {facts['architecture']} at "
        f"{facts['resolution']} px, {size:.1f} MB, {facts['licence']}"
    )
    if part := facts["accuracy"]["golden_part"]:
        output.print_text(
            f"The golden detector answered {part:.1%} of its frames; this is the camera's own model, alone"
        )
    output.print_text(f"How to use it is in {facts['card']}")
