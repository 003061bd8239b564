"""Commands for live cameras."""

from pathlib import Path
from typing import Annotated

import typer

from ekya.cli.options import Cameras, Classes, Golden, Json

commands = typer.Typer()


@commands.command(
    epilog="Examples:\n\n"
    "ekya record my-fleet.yaml --for 600 --out monday\n\n"
    "ekya record my-fleet.yaml --out monday --overwrite --json -\n\n"
    "ekya record --camera 'rtsp://admin:${CAM_PASSWORD}@10.0.0.5/live' --golden FastestDet.onnx "
    "--for 600 --out gate\n\n"
    "ekya compare monday/fleet.yaml"
)
def record(
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for the videos and fleet.yaml; created if missing.")
    ],
    fleet: Annotated[
        Path | None, typer.Argument(metavar="FLEET", help="Fleet file with live cameras.")
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option("--for", metavar="SECONDS", help="Duration; default: the fleet's windows."),
    ] = None,
    camera: Cameras = None,
    golden: Golden = None,
    classes: Classes = None,
    overwrite: Annotated[bool, typer.Option(help="Replace an earlier recording.")] = False,
    json_to: Json = None,
) -> None:
    """Record live cameras, so that ekya profile, compare, replay and run --clock virtual can show them again.

    Writes a video a camera and fleet.yaml: the same fleet with the videos in place of the cameras, and with
    scripts that say when a camera was lost. After Ctrl-C what was recorded is in the files. The exit code is
    1 where a camera is missing or its video ends early, and 2 where no camera gives a picture.
    """
    from ekya.cli.output import output

    with output(json_to) as channel:
        from ekya.cli.record import RecordArguments, record_cameras
        from ekya.cli.run import FleetArguments

        arguments = FleetArguments(fleet, golden=golden, classes=classes, cameras=tuple(camera or ()))
        if not record_cameras(arguments, RecordArguments(out, seconds, overwrite), channel):
            raise typer.Exit(1)
