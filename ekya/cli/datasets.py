"""Commands for data sets."""

from pathlib import Path
from typing import Annotated

import typer

from ekya.cli.options import Classes, Gpus, Json, Window

commands = typer.Typer()


@commands.command(
    epilog="Examples:\n\n"
    "ekya prepare cityscapes --root ~/data/cityscapes\n\n"
    "ekya prepare cityscapes --root ~/data/cityscapes --streams aachen,bremen --out two.yaml\n\n"
    "ekya prepare sample-list --root ~/crossings --window 60 --json -\n\n"
    "ekya prepare image-folder --root ~/crops --resume"
)
def prepare(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="cityscapes, waymo, sample-list or image-folder.")
    ],
    root: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the data set.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Fleet file to write; default: NAME.yaml.")
    ] = None,
    streams: Annotated[str, typer.Option(metavar="NAME,...", help="Only these streams; default: all.")] = "",
    classes: Classes = None,
    gpus: Gpus = None,
    window: Window = None,
    resume: Annotated[bool, typer.Option(help="Resume an interrupted check.")] = False,
    overwrite: Annotated[bool, typer.Option(help="Replace an earlier result.")] = False,
    json_to: Json = None,
) -> None:
    """Check a data set, say what is missing and where it is had, and write a fleet file for it.

    Nothing is downloaded. Every picture is decoded once; beside the fleet file comes a folder with its index.
    The exit code is 1 where something is missing or damaged, and 2 where nothing can be used.
    """
    from ekya.cli.output import output

    with output(json_to) as channel:
        from ekya.cli.prepare import PrepareArguments, prepare_dataset

        arguments = PrepareArguments(
            name=name,
            root=root,
            out=out,
            streams=tuple(one for one in streams.split(",") if one),
            classes=tuple(one for one in (classes or "").split(",") if one and one != "auto"),
            gpus=gpus,
            window_s=window,
            resume=resume,
            overwrite=overwrite,
        )
        if not prepare_dataset(arguments, channel):
            raise typer.Exit(1)
