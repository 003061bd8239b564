"""``ekya ctl``: shows and changes a running service over its REST API."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from ekya.cli import options as opt
from ekya.cli.command import Command, Output, command
from ekya.core.errors import UserError
from ekya.results.report.formatting import make_table

if TYPE_CHECKING:
    from ekya.service.http.client import ServiceClient

_Weight = Annotated[float | None, typer.Option(help="Weight of the camera's accuracy in the objective.")]
_MaxAge = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="Maximum age of the camera's latest result; 0 for no limit."),
]

_Mask = Annotated[
    str | None,
    typer.Option(
        metavar="POLYGONS",
        help="Where the camera's objects do not count: as in the fleet file, in JSON; [] for nowhere.",
    ),
]
_Zone = Annotated[
    str | None,
    typer.Option(metavar="POLYGONS", help="Where alone they count, likewise; [] for all of the picture."),
]

_OF_CAMERA = {"weight": "weight", "max_age": "max_age_s", "mask": "mask", "zone": "zone"}
_OF_FLEET = {
    "min_accuracy": "min_accuracy",
    "scheduler": "scheduler",
    "gpus": "gpus",
    "labels": "labels_per_window",
    "frames": "frames_per_window",
    "label_gpu_s": "gpu_s_per_window",
}
"""Options of ``ekya ctl set`` and the keys of the API that they set."""

_ZERO_IS_NONE = ("max_age", "label_gpu_s")
_IN_JSON = ("mask", "zone")

_COLORS = {"ok": "green", "lost": "red", "set aside": "red", "paused": "dim", "ended": "dim"}


@dataclass(frozen=True, kw_only=True)
class CtlConfig:
    """Options of a command about the whole service."""

    runs: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of all runs; default: runs, or wherever you run services."),
    ] = None
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the service; default: the only one.")
    ] = None
    json_to: opt.Json = None


@dataclass(frozen=True, kw_only=True)
class CtlCameraConfig(CtlConfig):
    """Options of a command about one camera."""

    camera: Annotated[str, typer.Argument(metavar="CAMERA", help="Id of the camera.")]


@dataclass(frozen=True, kw_only=True)
class CtlRollBackConfig(CtlCameraConfig):
    """Options of ``ekya ctl roll-back``."""

    version: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Version of a kept model; default: the one before the one that serves now."
        ),
    ] = None
    freeze: Annotated[
        bool,
        typer.Option("--freeze", help="Freeze the camera's model then, which pins it: no retraining."),
    ] = False


@dataclass(frozen=True, kw_only=True)
class CtlClassConfig(CtlConfig):
    """Options of ``ekya ctl add-class``."""

    class_name: Annotated[str, typer.Argument(metavar="CLASS", help="Name of the class.")]


@dataclass(frozen=True, kw_only=True)
class CtlAddConfig(CtlCameraConfig):
    """Options of ``ekya ctl add``."""

    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="A live camera: rtsp://, http:// or /dev/videoN; ${NAME} in it is an environment variable "
            "of the service.",
        ),
    ] = None
    video: Annotated[
        str | None, typer.Option(metavar="FILE[,FILE...]", help="Video files, played one after the other.")
    ] = None
    stream: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="YAML file with the other keys of a stream of the fleet file."),
    ] = None
    loop: opt.Loop = None
    weight: _Weight = None
    max_age: _MaxAge = None
    mask: _Mask = None
    zone: _Zone = None


@dataclass(frozen=True, kw_only=True)
class CtlSetConfig(CtlConfig):
    """Options of ``ekya ctl set``."""

    camera: Annotated[
        str | None,
        typer.Argument(metavar="CAMERA", help="Id of the camera; without it, the fleet is changed."),
    ] = None
    weight: _Weight = None
    max_age: _MaxAge = None
    mask: _Mask = None
    zone: _Zone = None
    min_accuracy: Annotated[
        float | None, typer.Option(help="Lowest accuracy that inference of a camera may have, of the fleet.")
    ] = None
    scheduler: Annotated[
        str | None,
        typer.Option(*opt.SCHEDULER_NAMES, metavar="NAME", help="Scheduler of the fleet, such as ekya."),
    ] = None
    gpus: Annotated[
        float | None,
        typer.Option(help="GPUs that the fleet may use, or a part of one; without a GPU, cores."),
    ] = None
    labels: Annotated[
        int | None,
        typer.Option(help="Objects that are labelled per camera and window, where edge models classify."),
    ] = None
    frames: Annotated[
        int | None,
        typer.Option(help="Frames that are labelled per camera and window, where edge models detect."),
    ] = None
    label_gpu_s: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="GPU-seconds that labelling a camera's window may take; 0 for no limit.",
        ),
    ] = None


@command(CtlConfig, "ekya ctl status", "ekya ctl status --name street --json -")
def status(config: CtlConfig, output: Output) -> None:
    """Show the cameras of a running service: state, accuracy, model, shares and retraining.

    Below the estimated accuracy is the 95% interval of the audited one.
    """
    client = _client(config.runs, config.name)
    told = client.get_json("status")
    output.write_json(told)
    window = f"window {told['window']}" if told["window"] >= 0 else "starting"
    output.print_text(f"{told['name']}: {window}, scheduler {told['scheduler']}, {client.place.url}")
    output.console.print(_table(told["cameras"]))
    for one in told["cameras"]:
        if note := one["reason"] or one["health_reason"]:
            output.print_text(f"{one['id']}: {note}")


@command(
    CtlAddConfig,
    "ekya ctl add gate --url 'rtsp://admin:${CAM_PASSWORD}@10.0.0.5/live'",
    "ekya ctl add yard --stream yard.yaml --weight 2",
    "ekya ctl add road --video monday.mp4 --loop",
)
def add(config: CtlAddConfig, output: Output) -> None:
    """Add a camera to a running service, and wait until it serves.

    Where it does not within half a minute, this says why, with exit code 1; the camera stays and is tried
    again. A recording begins when it is added.
    """
    _change(config, output, "POST", "cameras", _stream(config), (config.camera, "add", "is added"))


def _camera_command(what: str, summary: str, done: str, method: str = "POST") -> Command[CtlCameraConfig]:
    """Returns a command that changes one camera.

    Args:
        what: name of the command, and of the camera's resource that is posted to.
        summary: its help.
        done: how the camera is then, for "CAMERA is paused".
        method: of HTTP; another one than POST is one of the camera itself.
    """

    def run(config: CtlCameraConfig, output: Output) -> None:
        from ekya.service.http.client import camera_path

        path = camera_path(config.camera, f"/{what}" if method == "POST" else "")
        _change(config, output, method, path, None, (config.camera, what, done))

    run.__name__, run.__doc__ = what, summary
    return Command(CtlCameraConfig, run, (f"ekya ctl {what} gate",))


remove = _camera_command(
    "remove", "Remove a camera from a running service for good.", "is removed", method="DELETE"
)
pause = _camera_command("pause", "Stop analysing a camera until it is resumed.", "is paused")
resume = _camera_command(
    "resume", "Go on with a camera that is paused or set aside, or say why not.", "goes on"
)
freeze = _camera_command("freeze", "Keep a camera's model: no retraining.", "keeps its model")
unfreeze = _camera_command("unfreeze", "Let a camera's model be retrained again.", "is retrained again")
labels = _camera_command("labels", "Have the golden model label a camera now.", "will be labelled")
forget = _camera_command(
    "forget",
    "Delete the pictures that are kept of a camera; a removed one's as well.",
    "has no kept pictures any more",
)


@command(
    CtlSetConfig,
    "ekya ctl set gate --weight 2 --max-age 3",
    "ekya ctl set gate --mask '[[0, 0], [1, 0], [1, 0.25], [0, 0.25]]' --zone '[]'",
    "ekya ctl set --min-accuracy 0.6",
    "ekya ctl set --scheduler uniform:inference=300",
    "ekya ctl set --gpus 1.5",
    "ekya ctl set --labels 48 --label-gpu-s 2",
)
def set_(config: CtlSetConfig, output: Output) -> None:
    """Change terms of a camera, or of the fleet, while the service runs."""
    from ekya.service.http.client import camera_path

    of_camera, of_fleet = _given(config, _OF_CAMERA), _given(config, _OF_FLEET)
    if config.camera is None and of_camera:
        raise UserError(f"CAMERA is missing: {_option_of(_OF_CAMERA, of_camera)} is of one camera; name it")
    if config.camera is not None and of_fleet:
        raise UserError(f"{_option_of(_OF_FLEET, of_fleet)} is of the fleet; leave CAMERA out")
    if not (values := {**of_camera, **of_fleet}):
        raise UserError(
            "nothing is to change; give an option of a camera, such as --weight, or one of the fleet"
        )
    path = "fleet" if config.camera is None else camera_path(config.camera)
    _change(config, output, "PATCH", path, values, (config.camera or "fleet", "set", "is changed"))


@command(CtlClassConfig, "ekya ctl add-class truck")
def add_class(config: CtlClassConfig, output: Output) -> None:
    """Add a class that the golden model knows; the service starts again for it, with its models."""
    values = {"name": config.class_name}
    _change(config, output, "POST", "classes", values, (config.class_name, "add-class", "is added"))


@command(
    CtlRollBackConfig,
    "ekya ctl roll-back gate",
    "ekya ctl roll-back gate --version 3 --freeze",
)
def roll_back(config: CtlRollBackConfig, output: Output) -> None:
    """Serve a kept model again; with --freeze, pin it.

    The page shows the versions that are kept, and a refusal names them. The model serves under a new version.
    Exit code 1: it will, and a camera that is lost or paused has to come back first.
    """
    from ekya.service.http.client import camera_path

    client = _client(config.runs, config.name)
    values = None if config.version is None else {"version": config.version}
    answer = client.send_change("POST", camera_path(config.camera, "/roll-back"), values)
    if config.freeze:
        try:
            client.send_change("POST", camera_path(config.camera, "/freeze"))
        except UserError as error:
            raise UserError(f"{config.camera} is rolled back, but not frozen: {error}") from error
    which = "its previous model" if config.version is None else f"model {config.version} again"
    done = f"serves {which}{' and keeps it' if config.freeze else ''}"
    _tell(output, (config.camera, "roll-back", done), answer)


def _client(runs: Path | None, name: str | None) -> "ServiceClient":
    from ekya.service.http.client import ServiceClient

    return ServiceClient.find_service(runs, name)


def _change(
    config: CtlConfig,
    output: Output,
    method: str,
    path: str,
    values: Mapping[str, object] | None,
    told: tuple[str, str, str],
) -> None:
    """Changes something of a service, and tells what is changed, by what, how it is now, and what follows."""
    _tell(output, told, _client(config.runs, config.name).send_change(method, path, values))


def _tell(output: Output, told: tuple[str, str, str], note: Mapping[str, Any] | None) -> None:
    """Tells what is changed, and what follows; or, with exit code 1, what the change waits for."""
    subject, what, done = told
    output.write_json({"subject": subject, "change": what, **(note or {})})
    if note is not None and not note["done"]:
        output.print_text(note["note"])
        raise typer.Exit(1)
    output.print_text(f"{subject} {done}" + (f"; {note['note']}" if note is not None else ""))


def _given(config: CtlAddConfig | CtlSetConfig, keys: Mapping[str, str]) -> dict[str, object]:
    """Returns the values of the options that were given, by their keys; a limit of 0 is none.

    Raises:
        UserError: a value is no JSON where it should be.
    """
    given: dict[str, object] = {}
    for option, key in keys.items():
        value = getattr(config, option)
        if value is not None:
            given[key] = None if option in _ZERO_IS_NONE and value == 0 else value
            if option in _IN_JSON:
                given[key] = _parse_polygons(option, value)
    return given


def _parse_polygons(option: str, text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        raise UserError(
            f"--{option}: {text} is no JSON; write points, as in '[[0, 0], [1, 0], [1, 0.25]]'"
        ) from None


def _option_of(keys: Mapping[str, str], given: Mapping[str, object]) -> str:
    """Returns the first option that was given."""
    return next(f"--{option.replace('_', '-')}" for option, key in keys.items() if key in given)


def _stream(config: CtlAddConfig) -> dict[str, object]:
    """Returns a camera as a stream of the fleet file.

    Raises:
        UserError: no source, or several; or the file is no mapping.
    """
    from ekya.system.yaml_file import read_mapping

    given = {"--url": config.url, "--video": config.video, "--stream": config.stream}
    if len(named := [option for option, value in given.items() if value is not None]) != 1:
        told = " and ".join(named) or "the source of the frames is missing"
        raise UserError(f"{told}: give one of --url, --video and --stream")
    values: dict[str, object] = {}
    if config.stream is not None:
        values = dict(read_mapping(config.stream))
    elif config.url is not None:
        values["source"] = {"kind": "camera", "url": config.url}
    else:
        values["source"] = {
            "kind": "video",
            "files": [str(one.absolute()) for one in opt.split_files(config.video or "")],
        }
    if config.loop:
        values["play"] = {**(values.get("play") or {}), "loop": True}  # type: ignore[dict-item]
    return {**values, "id": config.camera, **_given(config, _OF_CAMERA)}


def _accuracies(estimated: float | None, audited: dict[str, Any] | None) -> str:
    """Returns a camera's estimated accuracy, and below it the interval of the audited one."""
    above = "" if estimated is None else f"{estimated:.1%}"
    return above if audited is None else f"{above}\n{100 * audited['low']:.0f}-{audited['high']:.0%}"


def _table(cameras: list[dict[str, Any]]) -> Table:
    table = make_table("camera", "state", "accuracy\naudited", "model", "inference", "retraining", left=6)
    for one in cameras:
        state = one["health"] if one["state"] == "serving" else one["state"]
        job = one["retraining"]
        table.add_row(
            Text(one["id"]),
            Text(state, _COLORS.get(state, "yellow")),
            _accuracies(one["accuracy"], one["audited"]),
            f"{one['model_version']}{' frozen' if one['frozen'] else ''}",
            f"{one['inference_share_milli'] / 1000:.2f}",
            f"{one['retraining_share_milli'] / 1000:.2f}, {job['epoch']}/{job['epochs']}" if job else "",
        )
    return table
