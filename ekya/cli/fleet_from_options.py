"""The fleet, and the options of its run, that a command's options name."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from ekya.api.fleets import Camera, Fleet, load_fleet
from ekya.cli.options import split_files, split_names
from ekya.config.fleet_file import FleetConfig
from ekya.config.fleet_reading import with_play
from ekya.config.run_options import RunOptions
from ekya.core.errors import UserError
from ekya.core.units import StreamId
from ekya.planning.schedulers.registry import make_scheduler
from ekya.streams.ingest.credentials import has_password

_KEYS = {"gpus": "gpus", "window": "window_s", "windows": "windows", "scheduler": "scheduler"}
"""Keys of a fleet file by the option that overrides them; ``--classes`` is another one."""

_OF_VIDEOS = {"golden": "golden", "golden_layout": "golden.layout", "student": "edge", "task": "edge"}
"""Options that make the fleet of videos and cameras, with the keys of a fleet file that do the same.

Golden model and student may also stand beside a fleet file, whose section ``golden`` or ``edge`` they
replace.
"""

_NEXT_SEED = 1000


def read_fleet(config: object) -> FleetConfig:
    """Reads the fleet that a command's options name: that of a file, of videos or of cameras.

    Args:
        config: dataclass with options of the command. Those about the fleet, by field, are ``fleet``,
            ``video``, ``camera``, ``golden``, ``golden_layout``, ``student``, ``task``, ``classes``,
            ``speed``, ``loop`` and those in ``_KEYS``.

    Raises:
        UserError: the options contradict each other, or the fleet file is invalid.
    """
    given = {option: value for option, value in vars(config).items() if value is not None}
    changes = {key: given[option] for option, key in _KEYS.items() if option in given}
    if "scheduler" in changes:
        make_scheduler(changes["scheduler"])
    if "classes" in given:
        classes = given["classes"]
        changes = {"classes": classes if classes == "auto" else split_names(classes), **changes}
    if "video" in given or "camera" in given:
        if "cameras" in given:
            raise UserError("--cameras: it repeats rendered cameras; name each --video and --camera itself")
        return _played(_fleet_of(given, changes), given)
    beside = given.keys() & {"golden", "student"} if "fleet" in given else set()
    allowed = {*beside, "golden_layout"} if "golden" in beside else beside
    for option, key in _OF_VIDEOS.items():
        if option in given and option not in allowed:
            one = "one or a fleet file" if option == "golden" else "one"
            raise UserError(
                f"--{option.replace('_', '-')}: it goes with --video and --camera; name {one}, or set "
                f"{key}: in the fleet file"
            )
    named = {option: given[option] for option in (*sorted(allowed), "offline") if option in given}
    fleet = load_fleet(given.get("fleet"), **named, **changes).config
    if "cameras" in given:
        fleet = repeat_cameras(fleet, given["cameras"])
    return _played(fleet, given)


def _played(fleet: FleetConfig, given: Mapping[str, Any]) -> FleetConfig:
    """Returns the fleet with the options of how its recordings are played."""
    play: dict[str, object] = {option: given[option] for option in ("speed", "loop") if option in given}
    return with_play(fleet, play) if play else fleet


def repeat_cameras(fleet: FleetConfig, count: int) -> FleetConfig:
    """Returns the fleet with this number of cameras: its own in turn, then with other seeds.

    Raises:
        UserError: a camera is not rendered, so that it would show the same again.
    """
    streams = []
    for number in range(count):
        times, place = divmod(number, len(fleet.streams))
        stream = fleet.streams[place]
        if times:
            seed = getattr(stream.source, "seed", None)
            if seed is None:
                raise UserError(
                    f"--cameras: {stream.id} is not rendered, and would show the same again; name its "
                    "copies in the fleet file"
                )
            source = stream.source.model_copy(update={"seed": seed + _NEXT_SEED * times})
            stream = stream.model_copy(update={"id": StreamId(f"{stream.id}-{times + 1}"), "source": source})
        streams.append(stream)
    return fleet.model_copy(update={"streams": tuple(streams)})


def _fleet_of(given: Mapping[str, Any], changes: Mapping[str, Any]) -> FleetConfig:
    """Returns the fleet of the given videos and cameras."""
    videos, cameras = given.get("video", ()), given.get("camera", ())
    option = "--video" if videos else "--camera"
    if "fleet" in given:
        raise UserError(f"{option}: {given['fleet']} names the cameras already; use one of the two")
    if any("://" in video for video in videos):
        raise UserError("--video: it names files; give the URL of a camera with --camera")
    # All users of the machine, and the dashboard, see a command line.
    if any(has_password(url) for url in cameras):
        raise UserError(
            "--camera: every user of this machine can see a password on the command line; put it "
            "into an environment variable, say CAM_PASSWORD, and write "
            "'rtsp://user:${CAM_PASSWORD}@host/...' in single quotes"
        )
    named = {option: given[option] for option in (*_OF_VIDEOS, "offline") if option in given}
    files = [Camera(split_files(video)) for video in videos]
    return Fleet([*files, *map(Camera, cameras)], **named, **changes).config


def make_run_options(config: object, fleet: FleetConfig, resume: Path | None = None) -> RunOptions:
    """Returns the options of a run: the fields of the command's config that have their names.

    Args:
        config: dataclass with options of the command.
        fleet: to run.
        resume: folder of the run to resume.
    """
    names = {one.name for one in fields(RunOptions)}
    given = {name: value for name, value in vars(config).items() if name in names}
    return RunOptions(**{**given, "scheduler": fleet.scheduler, "resume": resume})
