"""``ekya record``: records a fleet's live cameras as videos, with a fleet file that plays them."""

import logging
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ekya.cli import options as opt
from ekya.cli.command import Output, command
from ekya.core.errors import UserError
from ekya.core.units import StreamId
from ekya.system.ctrl_c import remember_ctrl_c
from ekya.system.files import user_errors, write_text_atomic

if TYPE_CHECKING:
    from ekya.config.fleet_file import FleetConfig
    from ekya.streams.ingest.recorder import Recording

_LOG = logging.getLogger(__name__)

FLEET = "fleet.yaml"
"""Name of the fleet file in the folder of the videos."""

_LEAST_WINDOWS = 2


@dataclass(frozen=True, kw_only=True)
class RecordConfig(opt.FleetOptions):
    """Options of ``ekya record``."""

    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for the videos and fleet.yaml; created if missing.")
    ]
    fleet: Annotated[Path | None, typer.Argument(metavar="FLEET", help="Fleet file with live cameras.")] = (
        None
    )
    camera: opt.Cameras = None
    seconds: Annotated[
        float | None,
        typer.Option("--for", metavar="SECONDS", help="Duration; default: the fleet's windows."),
    ] = None
    overwrite: Annotated[bool, typer.Option(help="Replace an earlier recording.")] = False
    json_to: opt.Json = None


@command(
    RecordConfig,
    "ekya record my-fleet.yaml --for 600 --out monday",
    "ekya record my-fleet.yaml --out monday --overwrite --json -",
    "ekya record --camera 'rtsp://admin:${CAM_PASSWORD}@10.0.0.5/live' --golden yolo11x.onnx "
    "--for 600 --out gate",
    "ekya compare monday/fleet.yaml",
)
def record(config: RecordConfig, output: Output) -> None:
    """Record live cameras, so that ekya profile, compare, replay and run --clock virtual can show them again.

    Writes a video a camera and fleet.yaml: the same fleet with the videos in place of the cameras, and with
    scripts that say when a camera was lost. After Ctrl-C what was recorded is in the files. The exit code is
    1 where a camera is missing or its video ends early, and 2 where no camera gives a picture.
    """
    from ekya.api.runnable import require_credentials
    from ekya.cli.fleet_from_options import read_fleet
    from ekya.cli.recording import CameraRecording, reasons_in_words, recorded_fleet_text
    from ekya.streams.ingest.camera import CameraSpec
    from ekya.streams.ingest.video import SUFFIX

    fleet = read_fleet(config)
    cameras = {stream.id: stream.source for stream in fleet.streams if isinstance(stream.source, CameraSpec)}
    if not cameras:
        raise UserError(
            f"{config.fleet or 'the shipped fleet'}: it has no live camera to record; name a fleet file "
            "that has one, or a camera with --camera"
        )
    require_credentials(fleet)
    seconds = _duration_s(fleet, config.seconds)
    files = {stream: config.out / f"{stream}{SUFFIX}" for stream in cameras}
    path = config.out / FLEET
    _require_space(config, [*files.values(), path])
    if seconds < _LEAST_WINDOWS * fleet.window_s:
        _LOG.warning(
            "%g s hold fewer than %d windows of %g s, and only in the second a model is retrained",
            seconds,
            _LEAST_WINDOWS,
            fleet.window_s,
        )
    with remember_ctrl_c():
        with closing(CameraRecording(cameras)) as recording:
            interrupted = recording.run(files, seconds, output.console)
        recorded, left_out = recording.recorded, recording.left_out
        if not recorded:
            if interrupted:
                raise KeyboardInterrupt
            raise UserError(f"nothing was recorded: {reasons_in_words(left_out)}")
        write_text_atomic(path, recorded_fleet_text(fleet, recorded, left_out, path))
        _report(path, recorded, left_out, output)
    if left_out or any(one.problem is not None for one in recorded.values()):
        raise typer.Exit(1)


def _duration_s(fleet: "FleetConfig", asked_s: float | None) -> float:
    if asked_s is not None:
        if not 0.0 < asked_s < math.inf:
            raise UserError(f"--for {asked_s:g}: this is no time to record; give seconds above 0")
        return asked_s
    if fleet.windows is None:
        raise UserError(
            "--for: the fleet file does not say how many windows to run; say how many seconds to record"
        )
    return fleet.windows * fleet.window_s


def _require_space(config: RecordConfig, files: Sequence[Path]) -> None:
    """Creates the folder; refuses one that cannot be written to or that already holds a recording."""
    with user_errors(config.out):
        config.out.mkdir(parents=True, exist_ok=True)
        if not os.access(config.out, os.W_OK):
            raise PermissionError(13, "not writable")
    there = [file for file in files if file.exists()]
    if there and not config.overwrite:
        raise UserError(
            f"--out {config.out}: {there[0].name} is there already; name another folder, or add --overwrite"
        )


def _report(
    path: Path,
    recorded: "Mapping[StreamId, Recording]",
    left_out: Mapping[StreamId, str],
    output: Output,
) -> None:
    from ekya.cli.recording import find_losses

    streams: dict[str, object] = {}
    lines = []
    for stream, one in sorted(recorded.items()):
        losses = find_losses(one)
        mb = one.size_bytes / 1e6
        mb_per_minute = mb / one.duration_s * 60
        streams[stream] = {
            "file": str(one.file),
            "seconds": round(one.duration_s, 3),
            "fps": one.fps,
            "frames": one.frames,
            "repeated": one.repeated,
            "width": one.width,
            "height": one.height,
            "mb": round(mb, 3),
            "mb_per_minute": round(mb_per_minute, 3),
            "lost": [
                {"at_s": lost.at_s, "for_s": lost.for_s, "reason": gap.reason}
                for gap, lost in zip(one.gaps, losses, strict=True)
            ],
            "problem": one.problem,
        }
        lost_for = f", lost for {sum(lost.for_s for lost in losses):.1f} s" if losses else ""
        lines.append(
            f"{stream}: {one.duration_s:.1f} s, {one.frames} frames of {one.width}x{one.height}{lost_for}, "
            f"{mb:.1f} MB ({mb_per_minute:.0f} MB a minute)"
        )
    output.write_json({"fleet": str(path), "streams": streams, "left_out": dict(sorted(left_out.items()))})
    lines += [f"{stream}: left out; {why}" for stream, why in sorted(left_out.items())]
    output.print_text("\n".join([*lines, f"The fleet of these recordings: {path}"]))
