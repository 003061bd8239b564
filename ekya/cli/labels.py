"""Commands for golden models: ``ekya golden ...``."""

from pathlib import Path
from typing import Annotated

import typer

from ekya.cli.options import Classes, FleetFile, Golden, Json, Videos, Window, Windows

commands = typer.Typer(name="golden", help="Golden models: label a fleet's streams before they are run.")


@commands.callback()
def _golden() -> None:
    """Golden models: label a fleet's streams before they are run."""


@commands.command(
    epilog="Examples:\n\n"
    "ekya golden label my-fleet.yaml --out labels.parquet\n\n"
    "ekya golden label my-fleet.yaml --from-truth --out labels.csv\n\n"
    "ekya golden label --video north.mp4 --golden yolo11x.onnx --out north.parquet\n\n"
    "ekya golden label my-fleet.yaml --out labels.parquet --resume"
)
def label(
    out: Annotated[Path, typer.Option(metavar="FILE", help="Label file to write: .parquet or .csv.")],
    fleet: FleetFile = None,
    video: Videos = None,
    golden: Golden = None,
    classes: Classes = None,
    from_truth: Annotated[
        bool, typer.Option(help="The labels that came with the data, instead of the golden model's.")
    ] = False,
    window: Window = None,
    windows: Windows = None,
    streams: Annotated[str, typer.Option(metavar="NAME,...", help="Only these streams; default: all.")] = "",
    resume: Annotated[bool, typer.Option(help="Resume with an existing file; its labels stay.")] = False,
    json_to: Json = None,
) -> None:
    """Let the golden model label every frame before a run, which then labels at no GPU cost.

    Name the file in the fleet file: golden: {model: file, weights: labels.parquet}. Labels are written every
    half minute; after Ctrl-C what is labelled is in the file.
    """
    from ekya.cli.output import output

    with output(json_to) as channel:
        from ekya.cli.golden import label_fleet
        from ekya.cli.run import FleetArguments
        from ekya.core.units import StreamId

        arguments = FleetArguments(fleet, tuple(video or ()), golden, classes, None, window, windows)
        chosen = tuple(StreamId(name) for name in streams.split(",") if name)
        label_fleet(arguments, chosen, from_truth, out, resume, channel)
