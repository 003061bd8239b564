"""Fleet file of recorded cameras."""

import logging
from collections.abc import Mapping
from pathlib import Path

import yaml

from ekya.config.fleet_file import OPEN, FleetConfig, StreamConfig, parse_fleet
from ekya.config.shipped import shipped_root
from ekya.core.units import US_PER_S, StreamId
from ekya.models.golden.proposer import ObjectsSpec
from ekya.models.golden.registry import FILE
from ekya.streams.ingest.camera import CameraSpec
from ekya.streams.ingest.playing import PlayConfig
from ekya.streams.ingest.recorder import Recording
from ekya.streams.ingest.script import Lost

_LOG = logging.getLogger(__name__)


def losses_of(recording: Recording) -> tuple[Lost, ...]:
    """Returns the outages of a camera as script events: frames that only repeat the last picture."""

    def seconds(frames: int) -> float:
        # Same rounding as the time stamps of the video source.
        return round(frames * US_PER_S / recording.fps) / US_PER_S

    return tuple(
        Lost(at_s=seconds(gap.begin), for_s=round(seconds(gap.end) - seconds(gap.begin), 6))
        for gap in recording.gaps
    )


def recorded_fleet_text(
    fleet: FleetConfig, recorded: Mapping[StreamId, Recording], left_out: Mapping[StreamId, str], out: Path
) -> str:
    """Returns the fleet with recordings in place of its cameras, as YAML.

    Args:
        fleet: with cameras.
        recorded: their files, in the folder of the fleet file.
        left_out: cameras without a recording, and the reason; the result does not contain them.
        out: path of the fleet file; paths in its folder are written relative to it.

    Raises:
        UserError: the recordings no longer exist.
    """
    raw = fleet.model_dump(mode="json", exclude_defaults=True, exclude={"streams"})
    raw.setdefault("golden", {})
    for key in filter(fleet.says, OPEN):  # a set size that equals its default would otherwise become open
        part, _, name = key.rpartition(".")
        said = fleet.model_dump(mode="json", include={part or name: {name} if part else True})
        raw[part or name] = {**raw.get(part, {}), **said[part]} if part else said[name]
    raw["streams"] = [
        _entry(fleet, stream, recorded.get(stream.id))
        for stream in fleet.streams
        if stream.id not in left_out
    ]
    folder = out.parent.resolve()
    folders = (folder, shipped_root().resolve())
    portable = {key: _portable(value, folders) for key, value in raw.items()}
    parse_fleet(portable, str(out), (folder, shipped_root()))
    lines = ["# Live cameras as ekya record has seen them; where one was lost, its play.script says so."]
    lines += [f"# Left out: {stream}, {' '.join(why.split())}" for stream, why in sorted(left_out.items())]
    return "\n".join([*lines, yaml.safe_dump(portable, sort_keys=False, allow_unicode=True)])


def _entry(fleet: FleetConfig, stream: StreamConfig, recording: Recording | None) -> dict[str, object]:
    """Returns a stream's section without keys that have their default."""
    raw: dict[str, object] = stream.model_dump(mode="json", exclude={"source", "play", "objects"})
    raw = {key: value for key, value in raw.items() if value != StreamConfig.model_fields[key].default}
    if recording is None:
        raw["source"] = stream.source.model_dump(mode="json", exclude_none=True)
        if stream.play != PlayConfig():
            raw["play"] = stream.play.model_dump(mode="json")
    else:
        source: dict[str, object] = {"kind": "video", "files": [str(recording.file.resolve())]}
        if isinstance(stream.source, CameraSpec):
            source["max_side"] = stream.source.max_side
        raw["source"] = source
        script = [lost.model_dump(mode="json") for lost in _told(fleet, stream.id, losses_of(recording))]
        if script:
            raw["play"] = {"script": script}
    if stream.objects != ObjectsSpec():
        raw["objects"] = stream.objects.model_dump(mode="json")
    return raw


def _told(fleet: FleetConfig, stream: StreamId, losses: tuple[Lost, ...]) -> tuple[Lost, ...]:
    """Returns the outages that this fleet's scripts may contain: none with labels from a file."""
    if fleet.golden.model != FILE:
        return losses
    for lost in losses:
        _LOG.warning(
            "%s was lost at %.1f s for %.1f s, and its file repeats a picture there: with the golden "
            "model %r no script may say so",
            stream,
            lost.at_s,
            lost.for_s,
            FILE,
        )
    return ()


def _portable(value: object, folders: tuple[Path, ...]) -> object:
    """Returns the value with paths in one of the folders made relative to it."""
    match value:
        case dict():
            return {key: _portable(one, folders) for key, one in value.items()}
        case list() | tuple():
            return [_portable(one, folders) for one in value]
        case str() if value.startswith("/"):
            for folder in folders:
                if Path(value).is_relative_to(folder):
                    return str(Path(value).relative_to(folder))
    return value
